"""The events of an answer, in order. An answer as text alone is in tests/parts/shared/test_text_answer.py."""

from hypothesis import given
from hypothesis import strategies as st

from mew_agent.participant.answers.builder import (
    AGENT_RESTARTED,
    AgentRestarted,
    AnswerBuilder,
    AnswerEvent,
    ContextNotice,
    Thinking,
    ToolCalled,
    Writing,
)


def joined(events: list[AnswerEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Writing))


def test_text_before_a_tool_call_becomes_thinking_and_the_call_an_event() -> None:
    answer = AnswerBuilder()
    assert answer.add_text("Let me look.") == []
    assert answer.add_tool_call("read", '{"a": 1}') == [Thinking("Let me look.\n"), ToolCalled("read", '{"a": 1}')]
    assert answer.add_tool_call("write", "x" * 1000) == [ToolCalled("write", "x" * 1000)]
    assert answer.finish("It is blue.") == [Writing("It is blue.")]


def test_a_notice_is_an_event_that_leaves_the_text_whole() -> None:
    answer = AnswerBuilder(may_use_tools=False)
    events = answer.add_text("The wat")
    assert answer.add_notice("compacting ...") == [ContextNotice("compacting ...")]
    events += [*answer.add_text("er rises."), *answer.finish("The water rises.")]
    assert (joined(events), answer.notices, answer.close()) == ("The water rises.", ["compacting ..."], [])


def test_a_restarted_agent_begins_a_paragraph_of_its_own() -> None:
    answer = AnswerBuilder(may_use_tools=False)
    events = answer.add_text("The ti")
    assert answer.restart_agent() == [AgentRestarted(AGENT_RESTARTED)]
    assert answer.notices == [AGENT_RESTARTED]
    events += answer.finish("The tide rises.")
    assert joined(events) == "The ti\n\nThe tide rises."


pieces = st.lists(st.text(alphabet="ab \n", min_size=1, max_size=6), max_size=12)


@given(pieces, st.integers(min_value=0, max_value=30), st.booleans())
def test_answer_equals_the_final_chat_however_it_is_split(cut: list[str], hold: int, tools: bool) -> None:
    answer, text = AnswerBuilder(hold_characters=hold, may_use_tools=tools), "".join(cut)
    events = [event for piece in cut for event in answer.add_text(piece)]
    assert joined(events + answer.finish(text)) == text
