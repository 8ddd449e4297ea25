"""What late joiners and readers see of the participants of a space: their statuses."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.core.state import SpaceState
from mew_spaces.core.status_board import StatusBoard

from tests.support.live_membership import post

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REPORT = {"basis": "reported", "level": "healthy", "revision": 1, "max_tokens_basis": "configured"}
WHOLE: dict[str, Any] = {"messages_in_context": 4, "tokens": 90, "max_tokens": 100, "context": REPORT}


def status(payload: dict[str, Any], *, sender: str = "coder", to: tuple[str, ...] = ()) -> Envelope:
    return Envelope.write("participant/status", id="s1", ts="t", sender=sender, payload=payload, to=to)


def test_a_status_is_kept_with_its_age() -> None:
    state = SpaceState()
    board = StatusBoard(state)
    assert post(board, status(WHOLE), at=NOW)
    entry = board.entry("coder", connected=True, now=NOW + timedelta(seconds=3))
    assert entry.model_dump(mode="json", exclude_unset=True) == {
        "id": "coder",
        "connected": True,
        "status": WHOLE,
        "status_id": "s1",
        "received_at": "2026-01-01T00:00:00.000Z",
        "age_seconds": 3.0,
        "figure_at": "2026-01-01T00:00:00.000Z",
    }
    assert list(state.statuses) == ["coder"]


def test_a_silent_participant_has_no_status() -> None:
    entry = StatusBoard(SpaceState()).entry("coder", connected=False, now=NOW)
    assert entry.model_dump(exclude_unset=True) == {"id": "coder", "connected": False}


def test_an_age_is_never_negative() -> None:
    board = StatusBoard(SpaceState())
    post(board, status(WHOLE), at=NOW)
    assert board.entry("coder", connected=True, now=NOW - timedelta(hours=1)).age_seconds == 0


def test_a_partial_status_never_replaces_a_whole_one() -> None:
    board = StatusBoard(SpaceState())
    post(board, status(WHOLE), at=NOW)
    assert not post(board, status({"messages_in_context": 9}, to=("ada",)), at=NOW)
    assert post(board, status({**WHOLE, "tokens": 95}, to=("ada",)), at=NOW)
    kept = board.entry("coder", connected=True, now=NOW).status
    assert kept is not None
    assert kept.tokens == 95


@pytest.mark.parametrize(
    "payload",
    [
        {"messages_in_context": "many"},
        {"messages_in_context": 1, "tokens": -3},
        {"messages_in_context": 1, "context": {"basis": "guessed"}},
        {"messages_in_context": 1, "context": {"basis": "unknown"}},
        {"messages_in_context": 1, "tokens": 3, "context": {"basis": "unknown", "reason": "compacted"}},
        {**WHOLE, "context": {**REPORT, "prompt_tokens": 91}},
        {**WHOLE, "context": {**REPORT, "prompt_tokens": -1}},
        {**WHOLE, "tokens": 0, "context": REPORT},
        {**WHOLE, "context": {**REPORT, "measured_at": "yesterday"}},
        {**WHOLE, "context": {**REPORT, "measured_at": "2026-01-01T00:00:00"}},
    ],
)
def test_an_invalid_status_never_replaces_a_valid_one(payload: dict[str, Any]) -> None:
    board = StatusBoard(SpaceState())
    post(board, status(WHOLE), at=NOW)
    assert "participant/status: payload" in post(board, status(payload), at=NOW).refused.message
    assert post(board, status({}), at=NOW) is None
    kept = board.entry("coder", connected=True, now=NOW).status
    assert kept is not None
    assert kept.tokens == 90


@pytest.mark.parametrize(
    ("figures", "place"),
    [
        ({"messages_in_context": "4"}, "payload.messages_in_context"),
        ({"tokens": "90"}, "payload.tokens"),
        ({"max_tokens": True, "tokens": 1}, "payload.max_tokens"),
        ({"latency_ms": True}, "payload.latency_ms"),
        ({"context": {**REPORT, "prompt_tokens": "80"}}, "payload.context.prompt_tokens"),
        ({"context": {**REPORT, "revision": True}}, "payload.context.revision"),
    ],
)
def test_a_figure_that_is_no_number_is_refused(figures: dict[str, Any], place: str) -> None:
    receipt = StatusBoard(SpaceState()).receive(status({**WHOLE, **figures}), now=NOW)
    assert receipt is not None
    assert receipt.refused is not None
    assert receipt.refused.message == f"participant/status: {place}: must be a whole number"


def test_a_whole_number_in_any_form_and_further_keys_are_accepted() -> None:
    board = StatusBoard(SpaceState())
    assert post(board, status({**WHOLE, "tokens": 90.0, "my_tokens": "12", "is_mine": True}), at=NOW)
    assert board.entry("coder", connected=True, now=NOW).status is not None


def test_a_written_entry_has_its_status_and_age() -> None:
    board = StatusBoard(SpaceState())
    post(board, status({"messages_in_context": 1}), at=NOW)
    first = board.entry_json("coder", connected=True, now=NOW)
    later = board.entry_json("coder", connected=False, now=NOW + timedelta(seconds=2))
    assert first is not None
    assert first == board.entry("coder", connected=True, now=NOW).model_dump(mode="json", exclude_unset=True)
    assert first["status"] == {"messages_in_context": 1}
    assert later == {**first, "connected": False, "age_seconds": 2.0}
    post(board, status({"messages_in_context": 2}), at=NOW)
    newer = board.entry_json("coder", connected=True, now=NOW)
    assert newer is not None
    assert newer["status"] == {"messages_in_context": 2}
    assert board.entry_json("ada", connected=True, now=NOW) is None


def test_the_time_to_compaction_follows_the_growth_of_the_last_hour() -> None:
    board = StatusBoard(SpaceState())

    def left(seconds: float, tokens: int | None = None, *, connected: bool = True) -> int | None:
        now = NOW + timedelta(seconds=seconds)
        if tokens is not None:
            report = {**WHOLE, "tokens": tokens, "max_tokens": 1_000, "context": {**REPORT, "compact_at_tokens": 900}}
            post(board, status(report), at=now)
        return board.entry("coder", connected=connected, now=now).seconds_to_compaction

    assert left(0, 100) is None
    assert left(1, 200) is None  # too short to be a rate
    assert left(100, 300) == 300  # 600 tokens at 200 in 100 s
    assert left(200) == 600  # idle since
    assert left(200, connected=False) is None
    assert left(300, 50) is None  # compacted
    assert left(400, 50) is None  # does not grow
    assert left(500, 850) == 12
    assert left(600, 950) == 0
    assert left(600 + 3_601) is None
    assert left(4_050, 960) == 0
    assert [tokens for _, tokens in board.trends["coder"]] == [850, 950, 960]  # the others are older than an hour


def test_figures_that_are_too_large_are_not_projected() -> None:
    board = StatusBoard(SpaceState())
    huge = 10**400
    for seconds, tokens, window in ((0, 100, 1_000), (10, huge, 1_000), (20, 100, 1_000), (30, 200, huge)):
        at = NOW + timedelta(seconds=seconds)
        post(board, status({"messages_in_context": 1, "tokens": tokens, "max_tokens": window}), at=at)
        assert board.entry("coder", connected=True, now=at + timedelta(seconds=9)).seconds_to_compaction is None


def test_any_time_of_a_measurement_follows_a_clock_that_is_set() -> None:
    board = StatusBoard(SpaceState())
    report = {**REPORT, "measured_at": "0001-01-01T00:00:00+14:00"}
    post(board, status({**WHOLE, "context": report}), at=NOW)
    board.shift(timedelta(days=-2))
    assert post(board, status({**WHOLE, "context": {**REPORT, "measured_at": "2026-01-01T00:00:00Z"}}), at=NOW)
