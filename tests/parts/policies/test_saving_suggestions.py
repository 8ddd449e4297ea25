"""Savings suggested from message sizes. Ids name the rows of the reference table."""

import pytest

from mew_agent.context.policy import MEW, Policy, Suggestion
from mew_agent.context.policy.definition import MessageSums
from mew_agent.parts.policies.presets import MEW_REFERENCE, TACHIKOMA

ROLES = {"S": "system", "U": "user", "A": "assistant", "T": "tool"}


def suggested(text: str, limit_tokens: int, policy: Policy = TACHIKOMA) -> tuple[Suggestion, ...]:
    """The suggestions for `U300 A400`: a user message of 300 tokens, then an answer of 400."""
    sums = MessageSums()
    for word in text.split():
        sums.add(int(word[1:]), ROLES[word[0]])  # type: ignore[arg-type]
    return policy.suggestions(sums, lambda size, _: round(size), limit_tokens)


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


def test_a_policy_without_such_rules_suggests_nothing() -> None:
    many = " ".join(["U100"] * 20)
    assert suggested(many, 1000, MEW) == suggested(many, 1000, MEW_REFERENCE) == ()
