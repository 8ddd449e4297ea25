"""Savings suggested from message sizes. Ids name the rows of the reference table."""

import pytest

from mew_agent.context.policy import MEW
from mew_agent.context.policy.definition import MessageCounter
from mew_agent.parts.policies.presets import MEW_REFERENCE, TACHIKOMA

ROLES = {"S": "system", "U": "user", "A": "assistant", "T": "tool"}


def conversation(text: str) -> MessageCounter:
    """`U300 A400` is a user message of 300 tokens, then an answer of 400."""
    made = TACHIKOMA.message_counter()
    assert made is not None
    for word in text.split():
        made.add(int(word[1:]), ROLES[word[0]])  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("messages", [10, 11, 12], ids="T10 {}".format)
def test_old_user_messages_are_suggested_for_removal_above_ten(messages: int) -> None:
    made = conversation(" ".join(["U100"] * messages))
    found = [(one.key, one.tokens_saved, one.impact) for one in made.suggestions(10_000)]
    assert found == ([] if messages == 10 else [("remove_user", (messages - 5) * 100, "low")])


@pytest.mark.parametrize(("tokens", "saved"), [(333, []), (334, [167])])
def test_large_answers_are_suggested_for_a_summary(tokens: int, saved: list[int]) -> None:
    assert [one.tokens_saved for one in conversation(f"A{tokens}").suggestions(1000)] == saved


def test_suggestions_keep_their_order_and_end_with_a_clear() -> None:
    made = conversation(" ".join(["U10"] * 11 + ["S90", "A500", "T70"]))
    assert [one.key for one in made.suggestions(1000)] == ["remove_user", "summarise_assistant"]
    made.clear()
    assert made.suggestions(1000) == ()


def test_a_policy_without_such_rules_counts_no_messages() -> None:
    assert MEW.message_counter() is MEW_REFERENCE.message_counter() is None
