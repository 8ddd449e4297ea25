"""Rows of the reference table of `mew-reference`."""

import pytest

from mew_agent.context.history import History
from mew_agent.context.policy import AnnounceAction, CompactAction
from mew_agent.context.tracker import Tracker
from mew_agent.model.event_stream import Event
from mew_agent.model.interface import ToolCall, Window
from mew_agent.model.reply_events import ReplyEvents
from mew_agent.model.usage import Usage
from mew_agent.parts.policies.presets import MEW_REFERENCE
from tests.support.trackers import keep_call

ALWAYS = {
    "basis",
    "measure",
    "max_tokens_basis",
    "level",
    "severity",
    "policy",
    "compact_at_tokens",
    "stale_messages",
    "revision",
    "compactions",
    "model",
}
MEASURED = {"measured_at", "call_id"}
OF_A_CALL = {"prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens"}
NEXT = {"next_prompt_tokens", "next_prompt_basis"}
TREND = {"tokens_per_turn", "turns_to_compaction"}


def used(prompt: int, completion: int, total: int) -> Usage:
    return Usage(prompt, completion, total)


def reference(window: int = 128_000) -> Tracker:
    return Tracker(History(), MEW_REFERENCE, Window(window, "configured"), "m")


def test_m1_a_report_replaces_the_one_before_it() -> None:
    tracker = reference()
    keep_call(tracker, used(50, 10, 60))
    assert tracker.measurement.tokens == 60
    keep_call(tracker, used(70, 12, 82))
    assert tracker.measurement.tokens == 82


def test_m2_m3_a_call_without_usage_keeps_last_reported_only() -> None:
    tracker = reference()
    keep_call(tracker, used(70, 12, 82))
    keep_call(tracker, None)
    assert tracker.measurement.tokens is None
    assert tracker.measurement.last_reported is not None
    assert tracker.measurement.last_reported.tokens == 82


@pytest.mark.parametrize(("total", "announced"), [(115_199, False), (115_200, True)], ids=["M4 below", "M4"])
def test_near_limit_is_announced_at_nine_tenths(total: int, announced: bool) -> None:
    tracker = reference()
    keep_call(tracker, used(total - 100, 100, total))
    assert (AnnounceAction("near_limit") in tracker.decide("after_call", 0.0).actions) is announced
    assert tracker.status("near_limit").tokens == total


def test_m7_a_smaller_window_announces_at_once() -> None:
    tracker = reference()
    keep_call(tracker, used(18_400, 100, 18_500))
    assert tracker.decide("after_call", 0.0).actions == ()
    tracker.window_changed(Window(20_000, "loaded"))
    assert tracker.decide("after_call", 1.0).actions == (AnnounceAction("near_limit"),)


def test_m8_a_compaction_that_frees_nothing_is_tried_once() -> None:
    tracker = reference()
    tried = []
    for seconds in (0.0, 1.0, 2.0):
        keep_call(tracker, used(124_900, 100, 125_000))
        wanted = any(isinstance(action, CompactAction) for action in tracker.decide("after_call", seconds).actions)
        tried.append(wanted)
        if wanted:
            tracker.compaction_ended(progressed=False, at_seconds=seconds)
    assert tried == [True, False, False]
    assert tracker.is_stalled


@pytest.mark.parametrize(
    ("chunks", "tokens"),
    [
        pytest.param([None, None, {"prompt_tokens": 110, "completion_tokens": 10, "total_tokens": 120}], 120, id="M13"),
        pytest.param([None, None], None, id="M13 cut before it"),
        pytest.param([{"prompt_tokens": 290, "completion_tokens": 10, "total_tokens": 300}], 300, id="M14 a response"),
    ],
)
def test_usage_is_taken_wherever_it_comes(chunks: list[dict[str, int] | None], tokens: int | None) -> None:
    events = ReplyEvents()
    for chunk in chunks:
        events.read(Event({"usage": chunk}))
    assert (events.usage.total_tokens if events.usage else None) == tokens


def test_m15_a_clear_leaves_no_figure_and_no_messages() -> None:
    tracker = reference()
    keep_call(tracker, used(99_000, 1_000, 100_000))
    tracker.history.clear()
    tracker.cleared()
    status = tracker.status("cleared:x")
    assert (status.status, status.tokens, status.messages_in_context) == ("cleared:x", None, 0)


def test_tool_calls_of_a_reply_do_not_change_its_figure() -> None:
    tracker = reference()
    tracker.history.begin_turn()
    tracker.item_added(tracker.history.append("user", "Look.", id="u", at="t"))
    keep_call(tracker, used(500, 40, 540))
    calls = (ToolCall("c", "read", '{"path": "a"}'),)
    tracker.item_added(tracker.history.append("assistant", "", id="a", at="t", tool_calls=calls, known_tokens=40))
    assert tracker.measurement.tokens == 540
