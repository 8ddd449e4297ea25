"""The board keeps what was said, as it was said."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.core.board import StatusBoard

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REPORT = {"basis": "reported", "level": "healthy", "revision": 1, "max_tokens_basis": "configured"}
WHOLE: dict[str, Any] = {"messages_in_context": 4, "tokens": 90, "max_tokens": 100, "context": REPORT}


def status(payload: dict[str, Any], *, sender: str = "coder", to: tuple[str, ...] = ()) -> Envelope:
    return Envelope.write("participant/status", id="s1", ts="t", sender=sender, payload=payload, to=to)


def test_a_status_is_kept_with_its_age() -> None:
    board = StatusBoard()
    assert board.post(status(WHOLE), at=NOW)
    entry = board.entry("coder", connected=True, now=NOW + timedelta(seconds=3))
    assert entry.model_dump(mode="json", exclude_unset=True) == {
        "id": "coder",
        "connected": True,
        "status": WHOLE,
        "status_id": "s1",
        "received_at": "2026-01-01T00:00:00.000Z",
        "age_seconds": 3.0,
    }
    assert board.participants == ("coder",)


def test_who_said_nothing_has_no_status_and_no_figures() -> None:
    entry = StatusBoard().entry("coder", connected=False, now=NOW)
    assert entry.model_dump(exclude_unset=True) == {"id": "coder", "connected": False}


def test_a_clock_that_goes_back_makes_no_negative_age() -> None:
    board = StatusBoard()
    board.post(status(WHOLE), at=NOW)
    assert board.entry("coder", connected=True, now=NOW - timedelta(hours=1)).age_seconds == 0


def test_a_status_for_one_asker_counts_only_when_it_is_whole() -> None:
    board = StatusBoard()
    board.post(status(WHOLE), at=NOW)
    assert not board.post(status({"messages_in_context": 9}, to=("ada",)), at=NOW)
    assert board.post(status({**WHOLE, "tokens": 95}, to=("ada",)), at=NOW)
    kept = board.entry("coder", connected=True, now=NOW).status
    assert kept is not None
    assert kept.tokens == 95


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"messages_in_context": "many"},
        {"messages_in_context": 1, "tokens": -3},
        {"messages_in_context": 1, "context": {"basis": "guessed"}},
        {"messages_in_context": 1, "context": {"basis": "unknown"}},
    ],
)
def test_a_status_that_does_not_read_as_one_never_replaces_one_that_does(payload: dict[str, Any]) -> None:
    board = StatusBoard()
    board.post(status(WHOLE), at=NOW)
    assert not board.post(status(payload), at=NOW)
    kept = board.entry("coder", connected=True, now=NOW).status
    assert kept is not None
    assert kept.tokens == 90


def test_lines_come_in_the_order_asked_for() -> None:
    entries = StatusBoard().entries([("b", True), ("a", False)], now=NOW)
    assert [(entry.id, entry.connected) for entry in entries] == [("b", True), ("a", False)]
