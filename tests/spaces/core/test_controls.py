"""Who is quiet, for how long, and what passes meanwhile."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mew_protocol import kinds
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.payloads.participant import Pause
from mew_spaces.core.controls import Controls

START = datetime(2026, 1, 1, tzinfo=UTC)
CHAT = Draft(kind="chat", payload={"text": "x"})


def controls(**options: Any) -> Controls:
    everything = {"enforce_pause": True, "enforce_shutdown": True, "is_known": lambda name: name != "ghost"}
    return Controls(**{**everything, **options})


def control(kind: str, to: list[str] | None = None, sender: str = "ada", **payload: Any) -> Envelope:
    return Envelope.write(kind, id="c", ts="t", sender=sender, to=to or [], payload=payload)


def test_a_paused_participant_is_quiet_until_it_is_resumed() -> None:
    one = controls()
    one.observe(control(kinds.PARTICIPANT_PAUSE, ["coder"]), now=START)
    assert "paused" in (one.objection(CHAT, "coder", now=START) or "")
    assert one.objection(CHAT, "ada", now=START) is None
    one.observe(control(kinds.PARTICIPANT_RESUME, ["coder"]), now=START)
    assert one.objection(CHAT, "coder", now=START) is None


@pytest.mark.parametrize("kind", sorted(kinds.ALLOWED_WHILE_PAUSED))
def test_what_ends_or_acknowledges_passes(kind: str) -> None:
    one = controls()
    one.observe(control(kinds.PARTICIPANT_PAUSE, ["coder"]), now=START)
    assert one.objection(Draft(kind=kind), "coder", now=START) is None


def test_a_pause_ends_by_itself_and_a_second_one_replaces_the_first() -> None:
    one = controls()
    one.observe(control(kinds.PARTICIPANT_PAUSE, ["coder"], timeout_seconds=5), now=START)
    one.observe(control(kinds.PARTICIPANT_PAUSE, ["coder"], timeout_seconds=10), now=START)
    assert one.objection(CHAT, "coder", now=START + timedelta(seconds=9))
    assert one.objection(CHAT, "coder", now=START + timedelta(seconds=10)) is None
    assert one.objection(CHAT, "coder", now=START) is None


def test_a_pause_may_be_longer_than_any_calendar() -> None:
    one = controls()
    one.observe(control(kinds.PARTICIPANT_PAUSE, ["coder"], timeout_seconds=1e300), now=START)
    assert one.objection(CHAT, "coder", now=START + timedelta(days=365))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (kinds.PARTICIPANT_PAUSE, {"timeout_seconds": -1}),
        (kinds.PARTICIPANT_PAUSE, {"timeout_seconds": "soon"}),
        (kinds.PARTICIPANT_SHUTDOWN, {"reason": 5}),
    ],
)
def test_a_control_that_cannot_be_read_holds_nobody(kind: str, payload: dict[str, Any]) -> None:
    one = controls()
    one.observe(control(kind, ["coder"], **payload), now=START)
    assert one.objection(CHAT, "coder", now=START) is None


def test_nobody_pauses_itself_or_everybody_or_strangers() -> None:
    one = controls()
    one.observe(control(kinds.PARTICIPANT_PAUSE), now=START)
    one.observe(control(kinds.PARTICIPANT_PAUSE, ["ada", "ghost"]), now=START)
    for name in ("ada", "coder", "ghost"):
        assert one.objection(CHAT, name, now=START) is None


def test_nobody_resumes_itself_not_even_by_telling_everybody() -> None:
    one = controls()
    one.observe(control(kinds.PARTICIPANT_PAUSE, ["coder", "files"]), now=START)
    one.observe(control(kinds.PARTICIPANT_RESUME, ["coder"], sender="coder"), now=START)
    one.observe(control(kinds.PARTICIPANT_RESUME, sender="coder"), now=START)
    assert one.objection(CHAT, "coder", now=START)
    assert one.objection(CHAT, "files", now=START) is None
    one.observe(control(kinds.PARTICIPANT_RESUME), now=START)
    assert one.objection(CHAT, "coder", now=START) is None


def test_who_was_shut_down_is_quiet_until_it_joins() -> None:
    one = controls()
    one.observe(control(kinds.PARTICIPANT_SHUTDOWN, ["coder"]), now=START)
    assert "shut down" in (one.objection(CHAT, "coder", now=START) or "")
    assert one.objection(Draft(kind=kinds.PARTICIPANT_STATUS), "coder", now=START) is None
    one.joined("coder")
    assert one.objection(CHAT, "coder", now=START) is None


def test_a_pause_outlives_a_new_connection_but_not_a_removal() -> None:
    one = controls()
    one.observe(control(kinds.PARTICIPANT_PAUSE, ["coder"]), now=START)
    one.joined("coder")
    assert one.objection(CHAT, "coder", now=START)
    one.forget("coder")
    assert one.objection(CHAT, "coder", now=START) is None


def test_a_pause_is_known_with_what_is_left_of_it() -> None:
    one = controls()
    assert one.pause_of("coder", now=START) is None
    one.observe(control(kinds.PARTICIPANT_PAUSE, ["coder"], reason="later"), now=START)
    assert one.pause_of("coder", now=START + timedelta(days=1)) == Pause(reason="later")
    one.observe(control(kinds.PARTICIPANT_PAUSE, ["coder"], timeout_seconds=5), now=START)
    assert one.pause_of("coder", now=START + timedelta(seconds=2)) == Pause(timeout_seconds=3)
    assert one.pause_of("coder", now=START + timedelta(seconds=5)) is None


def test_a_space_may_leave_both_to_its_participants() -> None:
    one = controls(enforce_pause=False, enforce_shutdown=False)
    for kind in (kinds.PARTICIPANT_PAUSE, kinds.PARTICIPANT_SHUTDOWN, kinds.PARTICIPANT_CLEAR):
        one.observe(control(kind, ["coder"]), now=START)
    assert one.objection(CHAT, "coder", now=START) is None
