"""Suggestions follow what is in the history, and cost the same however long it is."""

from mew_agent.context.history import History
from mew_agent.context.policy import MEW, TACHIKOMA, Policy
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.suggestions import Advice


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


def test_nothing_is_suggested_where_no_rule_says_so() -> None:
    assert Advice(filled(40, policy=MEW)).renew() == ()


def test_prompts_of_our_own_are_nobodys_messages() -> None:
    tracker = filled(10)
    advice = Advice(tracker)
    assert advice.renew() == ()
    add(tracker, "user", "a prompt", notice=True)
    assert advice.renew() == ()
    add(tracker, "user", "the eleventh")
    (one,) = advice.renew()
    assert one.text == "remove the 6 oldest user messages"
    assert tracker.suggestions == (one,)


def test_what_left_is_suggested_no_more() -> None:
    tracker = filled(11)
    advice = Advice(tracker)
    assert advice.renew()
    gone = tracker.history.evict(0, 3, None)
    tracker.cut(0, 3, trigger="forget", freed_messages=len(gone))
    assert advice.renew() == ()


def test_long_answers_are_measured_against_the_window() -> None:
    tracker = filled(1, "assistant", limit=30)
    tracker.history.items.clear()
    add(tracker, "assistant", "word " * 40)
    (one,) = Advice(tracker).renew()
    assert one.impact == "medium"


def test_only_what_entered_since_is_looked_at() -> None:
    class Looking(list):  # type: ignore[type-arg]
        """Counts the items that were read from the newest end."""

        looked = 0

        def __reversed__(self):  # type: ignore[no-untyped-def]
            for item in super().__reversed__():
                Looking.looked += 1
                yield item

    tracker = filled(500)
    advice = Advice(tracker)
    advice.renew()
    add(tracker, "user", "one more")
    tracker.history.items = Looking(tracker.history.items)
    advice.renew()
    assert Looking.looked == 2
