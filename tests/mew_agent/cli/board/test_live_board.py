"""Applying events to a board keeps it equal to the gateway's own board."""

from typing import Any

import pytest
from mew_protocol.payloads.participant import Board

from mew_agent.cli.board.board_events import apply_event, entry_of

START = {
    "space": "review",
    "at": "2026-01-01T00:00:00Z",
    "participants": [{"id": "ada", "connected": True}, {"id": "coder", "connected": False}],
}


def board() -> Board:
    return Board.model_validate(START)


def envelope(kind: str, sender: str, payload: Any, **headers: Any) -> dict[str, Any]:
    return {"id": "e1", "ts": "2026-01-01T00:00:09Z", "from": sender, "kind": kind, "payload": payload, **headers}


def test_first_event_is_the_board() -> None:
    assert apply_event(None, "board", START) == (board(), None)


def test_broadcast_status_updates_its_sender() -> None:
    reported = envelope("participant/status", "coder", {"messages_in_context": 1, "tokens": 5, "own": 1})
    found, changed = apply_event(board(), "envelope", reported)
    assert changed == "coder"
    entry = entry_of(found, "coder") if found else None
    assert entry is not None
    assert entry.status is not None
    assert entry.status.tokens == 5
    assert (entry.connected, entry.received_at, entry.status_id) == (True, "2026-01-01T00:00:09Z", "e1")


def test_outdated_figures_are_those_that_the_gateway_names() -> None:
    whole = {"messages_in_context": 1, "tokens": 704, "max_tokens": 20_000}
    found, _ = apply_event(board(), "envelope", envelope("participant/status", "coder", whole, to=["system:gateway"]))
    old = {"outdated": "messages_since", "figure_at": "2026-01-01T00:00:09Z"}
    found, changed = apply_event(found, "outdated", {"coder": old})
    assert found is not None
    entry = entry_of(found, "coder")
    assert entry is not None
    assert (changed, entry.outdated, entry.figure_at) == (None, "messages_since", old["figure_at"])
    cleared, _ = apply_event(found, "outdated", {})
    newer, _ = apply_event(found, "envelope", envelope("participant/status", "coder", whole))
    for shown in (cleared, newer):
        assert shown is not None
        assert [one.outdated for one in shown.participants] == [None, None]


def test_partial_status_leaves_the_board_unchanged() -> None:
    reported = envelope("participant/status", "coder", {"messages_in_context": 1}, to=["ada"])
    assert apply_event(board(), "envelope", reported) == (board(), None)


@pytest.mark.parametrize(("event", "connected"), [("join", True), ("leave", False)])
def test_presence_updates_the_connected_participants(event: str, connected: bool) -> None:
    reported = envelope("system/presence", "system:gateway", {"event": event, "participant": {"id": "ada"}})
    found, changed = apply_event(board(), "envelope", reported)
    assert changed == "ada"
    assert found is not None
    entry = entry_of(found, "ada")
    assert entry is not None
    assert entry.connected is connected


def test_new_participant_joins_the_board() -> None:
    reported = envelope("system/presence", "system:gateway", {"event": "join", "participant": {"id": "new"}})
    found, _ = apply_event(board(), "envelope", reported)
    assert found is not None
    assert [entry.id for entry in found.participants] == ["ada", "coder", "new"]


@pytest.mark.parametrize(
    "reported",
    [
        envelope("chat", "ada", {"text": "hi"}),
        envelope("participant/status", "coder", {"messages_in_context": -1}),
        envelope("participant/status", "coder", None),
        envelope("system/presence", "system:gateway", {"event": "join", "participant": "x"}),
        envelope("system/presence", "system:gateway", {"event": "invited", "participant": {"id": "x"}}),
        "text",
        None,
    ],
)
def test_other_events_change_nothing(reported: Any) -> None:
    assert apply_event(board(), "envelope", reported) == (board(), None)


def test_events_before_the_board_are_ignored() -> None:
    assert apply_event(None, "envelope", envelope("chat", "ada", {})) == (None, None)
