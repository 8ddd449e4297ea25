"""Reasoning payloads, in both forms."""

from mew_protocol.payloads.reasoning import Conclusion, Thought


def test_a_thought_of_the_typescript_agent_is_read() -> None:
    thought = Thought.model_validate({"reasoning": "hm", "action": "tool", "actionInput": {"a": 1}})
    assert thought.action_input == {"a": 1}
    assert thought.model_dump(by_alias=True, exclude_none=True)["actionInput"] == {"a": 1}


def test_a_conclusion_may_be_empty() -> None:
    assert Conclusion.model_validate({}).cancelled is None
