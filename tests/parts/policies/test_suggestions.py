"""Suggestions follow the history."""

from mew_agent.context.history import History
from mew_agent.context.policy import MEW, Policy, Suggestion
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.parts.policies.presets import TACHIKOMA
from mew_agent.tokens.projection import features


def filled(messages: int, role: str = "user", *, policy: Policy = TACHIKOMA, limit: int = 10_000) -> Tracker:
    tracker = Tracker(History(), policy, resolve_window(limit), "model")
    for number in range(messages):
        add(tracker, role, f"message {number}")
    return tracker


def add(tracker: Tracker, role: str, text: str, *, notice: bool = False) -> None:
    tracker.history.begin_turn()
    name = f"i{tracker.history.next_seq}"
    item = tracker.history.append("assistant" if role == "assistant" else "user", text, id=name, at="t", notice=notice)
    tracker.item_added(item)


def suggested(tracker: Tracker) -> tuple[Suggestion, ...]:
    tracker.decide("message_added", 0.0)
    return tracker.suggestions


def test_policies_without_suggestion_rules_suggest_nothing() -> None:
    assert suggested(filled(40, policy=MEW)) == ()


def test_prompts_of_the_policy_do_not_count_as_user_messages() -> None:
    tracker = filled(10)
    assert suggested(tracker) == ()
    add(tracker, "user", "a prompt", notice=True)
    assert suggested(tracker) == ()
    add(tracker, "user", "the eleventh")
    (one,) = suggested(tracker)
    assert one.text == "remove the 6 oldest user messages"


def test_evicted_messages_are_no_longer_suggested() -> None:
    tracker = filled(11)
    assert suggested(tracker)
    gone = tracker.history.evict(0, 3, None)
    tracker.cut(0, 3, trigger="forget", freed_messages=len(gone))
    assert suggested(tracker) == ()


def test_the_impact_of_long_answers_depends_on_the_window() -> None:
    tracker = filled(1, "assistant", limit=30)
    tracker.history.items.clear()
    add(tracker, "assistant", "word " * 40)
    (one,) = suggested(tracker)
    assert one.impact == "medium"


def test_new_messages_are_not_measured_again() -> None:
    tracker = filled(1)
    suggested(tracker)
    item = tracker.history.append("user", "word " * 5_000, id="long", at="t")
    tracker.item_added(item, units=features("word"))  # it was measured in a thread when it was added
    for number in range(9):
        add(tracker, "user", f"message {number}")
    (one,) = suggested(tracker)
    assert 0 < one.tokens_saved < 500
