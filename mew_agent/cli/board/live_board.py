"""[pure] Applies a space's events to a board, so that watching it needs no further requests."""

from collections.abc import Mapping
from typing import Any

from mew_protocol import kinds
from mew_protocol.json_values import object_at, value_at
from mew_protocol.payloads.participant import Board, BoardEntry, Status
from pydantic import ValidationError


def apply_event(board: Board | None, name: str, body: Any) -> tuple[Board | None, str | None]:
    """The board after an event, and the participant that changed; None means none or all of them.

    A status addressed to a participant answers a request and may hold only the fields asked for, so it changes nothing.
    """
    if name == "board":
        return Board.model_validate(body), None
    if name != "envelope" or board is None or not isinstance(body, Mapping):
        return board, None
    payload = object_at(body, "payload")
    at = str(body.get("ts") or board.at)
    match body.get("kind"):
        case kinds.PARTICIPANT_STATUS if not body.get("to"):
            try:
                status = Status.model_validate(payload)
            except ValidationError:
                return board, None
            sender = str(body.get("from"))
            change = {"status": status, "status_id": body.get("id"), "received_at": at, "age_seconds": 0.0}
            change["seconds_to_compaction"] = None  # the gateway projects it, from more than this status
            return _with_change(board, sender, at, {"connected": True, **change}), sender
        case kinds.SYSTEM_PRESENCE if payload.get("event") in ("join", "leave"):
            member_id = str(value_at(payload, "participant", "id") or "")
            if not member_id:
                return board, None
            return _with_change(board, member_id, at, {"connected": payload["event"] == "join"}), member_id
        case _:
            return board, None


def entry_of(board: Board, participant: str) -> BoardEntry | None:
    """The participant's entry on the board."""
    return next((entry for entry in board.participants if entry.id == participant), None)


def _with_change(board: Board, participant: str, at: str, change: Mapping[str, Any]) -> Board:
    known = entry_of(board, participant)
    changed = (known or BoardEntry(id=participant, connected=True)).model_copy(update=dict(change))
    if known is None:
        entries = (*board.participants, changed)
    else:
        entries = tuple(changed if entry is known else entry for entry in board.participants)
    return board.model_copy(update={"participants": entries, "at": at})
