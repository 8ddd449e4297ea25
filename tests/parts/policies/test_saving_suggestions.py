"""Savings suggested from message sizes. Ids name the rows of the reference table."""

import pytest

from mew_agent.context.policy import MEW, Suggestion
from mew_agent.context.policy.definition import MessageSize
from mew_agent.parts.policies.presets import MEW_REFERENCE, TACHIKOMA

ROLES = {"S": "system", "U": "user", "A": "assistant", "T": "tool"}


def messages(text: str) -> list[MessageSize]:
    """`U300 A400` is a user message of 300 tokens, then an answer of 400."""
    return [(int(word[1:]), ROLES[word[0]]) for word in text.split()]  # type: ignore[misc]


def suggested(text: str, limit_tokens: int) -> tuple[Suggestion, ...]:
    return TACHIKOMA.suggestions(messages(text), limit_tokens)


@pytest.mark.parametrize("count", [10, 11, 12], ids="T10 {}".format)
def test_old_user_messages_are_suggested_for_removal_above_ten(count: int) -> None:
    found = [(one.key, one.tokens_saved, one.impact) for one in suggested(" ".join(["U100"] * count), 10_000)]
    assert found == ([] if count == 10 else [("remove_user", (count - 5) * 100, "low")])


@pytest.mark.parametrize(("tokens", "saved"), [(333, []), (334, [167])])
def test_large_answers_are_suggested_for_a_summary(tokens: int, saved: list[int]) -> None:
    assert [one.tokens_saved for one in suggested(f"A{tokens}", 1000)] == saved


def test_suggestions_keep_the_order_of_their_rules() -> None:
    found = suggested(" ".join(["U10"] * 11 + ["S90", "A500", "T70"]), 1000)
    assert [one.key for one in found] == ["remove_user", "summarise_assistant"]


def test_a_policy_without_such_rules_reads_no_messages() -> None:
    unread = iter(messages("U1"))
    assert MEW.suggestions(unread, 1000) == MEW_REFERENCE.suggestions(unread, 1000) == ()
    assert len(list(unread)) == 1
