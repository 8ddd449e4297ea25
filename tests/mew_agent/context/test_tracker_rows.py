"""The table of the context report, row by row."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
from mew_protocol.context_report import ContextReport, Injection, UnknownReason

from mew_agent.context.history import History, Summary
from mew_agent.context.item_sizes import kept_reply_tokens
from mew_agent.context.policy import MEW
from mew_agent.context.tracker import Tracker
from mew_agent.model.interface import Window
from mew_agent.model.usage import Usage
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


class Moment:
    """A tracker of `mew` in a window of 128,000 tokens, and what may happen to it."""

    def __init__(self, history: History | None = None) -> None:
        self.history = history or History()
        self.tracker = Tracker(self.history, MEW, Window(128_000, "configured"), "gpt")
        self.tracker.describe_prefix("You are an agent in a space.", "")
        self.calls = 0

    def ask(self) -> None:
        self.history.begin_turn()
        name = f"u{self.history.next_seq}"
        self.tracker.item_added(self.history.append("user", "And the next pump? " * 8, id=name, at="t"))

    def call(self, total: int | None, revision: int | None = None, served: str = "gpt") -> None:
        self.calls += 1
        usage = None if total is None else Usage(total - 60, 60, total, reasoning_tokens=20, cached_tokens=5)
        keep_call(
            self.tracker, usage, call_id=f"call-{self.calls}", at=f"t{self.calls}", revision=revision, served=served
        )
        known = kept_reply_tokens(usage, thinking_seen=False)
        name = f"a{self.history.next_seq}"
        self.tracker.item_added(self.history.append("assistant", "Pump 7. " * 20, id=name, at="t", known_tokens=known))

    def turn(self, total: int | None) -> None:
        self.ask()
        self.call(total)

    def forget(self) -> None:
        gone = self.history.evict(0, 1, None)
        outcome = self.tracker.cut(0, 1, trigger="forget", freed_messages=len(gone))
        self.tracker.compacted(outcome, at="t9", at_seconds=9.0, progressed=True)

    def compact(self) -> None:
        gone = self.history.evict(0, 1, Summary("Pumps.", known_tokens=3))
        outcome = self.tracker.cut(0, 1, trigger="threshold", freed_messages=len(gone))
        self.tracker.compacted(outcome, at="t9", at_seconds=9.0, progressed=True)

    def restart(self) -> None:
        old = self.tracker
        self.tracker = Tracker(self.history, MEW, Window(128_000, "configured"), "gpt")
        self.tracker.restored(old.saved(), {})
        self.tracker.describe_prefix("You are an agent in a space.", "")

    def clear(self) -> None:
        self.history.clear()
        self.tracker.cleared()


def joined(_: Moment) -> None:
    pass


def kept(moment: Moment) -> None:
    moment.turn(2_000)
    moment.turn(2_400)


def received(moment: Moment) -> None:
    kept(moment)
    moment.ask()


def failed(moment: Moment) -> None:
    received(moment)  # a call that failed or was cut is not reported to the tracker


def unreported(moment: Moment) -> None:
    kept(moment)
    moment.turn(None)


def implausible(moment: Moment) -> None:
    kept(moment)
    moment.turn(900_000)


def compacted(moment: Moment) -> None:
    kept(moment)
    moment.compact()


def forgot(moment: Moment) -> None:
    kept(moment)
    moment.forget()


def cleared(moment: Moment) -> None:
    kept(moment)
    moment.clear()


def restarted(moment: Moment) -> None:
    kept(moment)
    moment.restart()


def other_window(moment: Moment) -> None:
    kept(moment)
    moment.tracker.window_changed(Window(2_500, "loaded"))


def other_model(moment: Moment) -> None:
    kept(moment)
    moment.ask()
    moment.call(None, served="other")


def late_usage(moment: Moment) -> None:
    kept(moment)
    moment.ask()
    moment.call(9_000, revision=7)


BOOKED = {"breakdown", "drift_tokens"}
SHOWN = ALWAYS | MEASURED | OF_A_CALL | NEXT | TREND | BOOKED
UNKNOWN = ALWAYS | MEASURED | {"reason", "last_reported", "drift_tokens"}
ROWS: list[Any] = [
    # moment, tokens, basis, reason, stale messages, messages, keys
    pytest.param(joined, None, "unknown", "no_call_yet", 0, 0, ALWAYS | {"reason"} | NEXT, id="joined, no call yet"),
    pytest.param(kept, 2_400, "reported", None, 0, 4, SHOWN, id="main call kept, usage seen"),
    pytest.param(received, 2_400, "reported", None, 1, 5, SHOWN, id="items added since"),
    pytest.param(failed, 2_400, "reported", None, 1, 5, SHOWN, id="a call failed or was cut"),
    pytest.param(
        unreported,
        None,
        "unknown",
        "usage_unavailable",
        2,
        6,
        UNKNOWN | NEXT | {"tokens_per_turn"},
        id="call kept, no usage",
    ),
    pytest.param(
        implausible,
        None,
        "unknown",
        "usage_implausible",
        2,
        6,
        UNKNOWN | NEXT | {"tokens_per_turn"},
        id="call kept, implausible usage",
    ),
    pytest.param(
        compacted,
        ...,
        "projected",
        None,
        0,
        2,
        (SHOWN - OF_A_CALL) | {"last_reported", "last_compaction"},
        id="compacted",
    ),
    pytest.param(
        forgot, ..., "projected", None, 0, 2, (SHOWN - OF_A_CALL) | {"last_reported", "last_compaction"}, id="forget"
    ),
    pytest.param(cleared, None, "unknown", "cleared", 0, 0, UNKNOWN | NEXT, id="cleared"),
    pytest.param(
        restarted, None, "unknown", "restarted", 0, 4, (UNKNOWN | NEXT) - {"drift_tokens"}, id="process restarted"
    ),
    pytest.param(other_window, 2_400, "reported", None, 0, 4, SHOWN, id="window changed"),
    pytest.param(other_model, None, "unknown", "model_changed", 2, 6, UNKNOWN | NEXT, id="served model changed"),
    pytest.param(late_usage, 2_400, "reported", None, 2, 6, SHOWN, id="usage of an older revision"),
]


@pytest.mark.parametrize(("happens", "tokens", "basis", "reason", "stale", "messages", "keys"), ROWS)
def test_each_moment_shows_exactly_the_known_keys(
    happens: Callable[[Moment], None],
    tokens: Any,
    basis: str,
    reason: str | None,
    stale: int,
    messages: int,
    keys: set[str],
) -> None:
    moment = Moment()
    happens(moment)
    said = moment.tracker.status("active").model_dump(exclude_none=True)
    shown = said["context"]
    assert said["messages_in_context"] == messages
    if tokens is ...:
        tokens = 2_400 - shown["last_compaction"]["freed_tokens"]
    assert said.get("tokens") == tokens
    assert (shown["basis"], shown.get("reason"), shown["stale_messages"]) == (basis, reason, stale)
    assert set(shown) == keys
    if "last_reported" in shown:
        assert shown["last_reported"] == {"tokens": 2_400, "measured_at": "t2", "call_id": "call-2"}
    if "breakdown" in shown:
        assert sum(part["tokens"] for part in shown["breakdown"] if part["part"] != "unsent") == tokens


def test_the_rows_cover_every_key_and_reason() -> None:
    seen = {key for row in ROWS for key in row.values[6]}
    # Below, where policies look at messages or at the spend, and in the tests of waiting agents, sessions and pieces.
    elsewhere = {
        "injection",
        "suggestions",
        "spent_tokens",
        "budget_tokens",
        "spent_for",
        "waiting",
        "queued",
        "sessions",
        "pins",
    }
    elsewhere |= {"progress", "spending", "mode"}
    assert seen | elsewhere == set(ContextReport.model_fields)
    reasons = {row.values[3] for row in ROWS} - {None}
    assert reasons | {"limit_unavailable", "compacted"} == set(get_args(UnknownReason))


def test_an_injection_in_force_is_shown_as_it_is() -> None:
    moment = Moment()
    moment.tracker.injection = Injection(kind="countdown", remaining=3, text="Three are left.")
    assert moment.tracker.report().injection == Injection(kind="countdown", remaining=3, text="Three are left.")


def test_the_level_and_the_mark_follow_a_new_window_at_once() -> None:
    moment = Moment()
    other_window(moment)
    report = moment.tracker.report()
    assert (report.level, report.severity, report.compact_at_tokens, report.max_tokens_basis) == (
        "near_limit",
        2,
        2_250,
        "loaded",
    )


def test_the_figures_of_the_next_call_are_plain_after_every_moment() -> None:
    for row in ROWS:
        moment = Moment()
        row.values[0](moment)
        moment.turn(3_000)
        said = moment.tracker.status("active").model_dump(exclude_none=True)
        assert (said["tokens"], said["context"]["basis"], said["context"]["stale_messages"]) == (3_000, "reported", 0)
        assert "reason" not in said["context"]
        assert "last_reported" not in said["context"]
