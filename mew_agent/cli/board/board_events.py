"""[pure] Applies a space's events to a board, so that watching it needs no further requests."""

from collections.abc import Mapping
from typing import Any

from mew_board.shared_words import OUTDATED_WORDS
from mew_protocol import kinds
from mew_protocol.envelope import Draft
from mew_protocol.json_values import object_at, value_at
from mew_protocol.payloads.participant import Board, BoardEntry, Status, is_whole_status
from pydantic import ValidationError


def apply_event(board: Board | None, name: str, body: Any) -> tuple[Board | None, str | None]:
    """Return the board after an event, and the participant that changed; None: none or all.

    A status with only requested fields changes nothing. The event `outdated` lists old figures; a new status is never
    old.
    """
    if name == "board":
        return Board.model_validate(body), None
    if board is None or not isinstance(body, Mapping):
        return board, None
    if name == "outdated":
        return _with_outdated(board, body), None
    if name != "envelope":
        return board, None
    match body.get("kind"):
        case kinds.PARTICIPANT_STATUS:
            return _with_status(board, body)
        case kinds.SYSTEM_PRESENCE:
            return _with_presence(board, body)
        case _:
            return board, None


def _with_status(board: Board, body: Mapping[str, Any]) -> tuple[Board, str | None]:
    try:
        if not is_whole_status(Draft.model_validate(body)):
            return board, None
        status = Status.model_validate(object_at(body, "payload"))
    except ValidationError:
        return board, None
    sender, at = str(body.get("from")), str(body.get("ts") or board.at)
    change = {"status": status, "status_id": body.get("id"), "received_at": at, "age_seconds": 0.0}
    change |= {"figure_at": None, "outdated": None}
    change["seconds_to_compaction"] = None  # the gateway projects it, from more than this status
    return _with_change(board, sender, at, {"connected": True, **change}), sender


def _with_presence(board: Board, body: Mapping[str, Any]) -> tuple[Board, str | None]:
    event = value_at(body, "payload", "event")
    member_id = str(value_at(body, "payload", "participant", "id") or "")
    if event not in ("join", "leave") or not member_id:
        return board, None
    at = str(body.get("ts") or board.at)
    return _with_change(board, member_id, at, {"connected": event == "join"}), member_id


def entry_of(board: Board, participant: str) -> BoardEntry | None:
    """Return the participant's entry on the board."""
    return next((entry for entry in board.participants if entry.id == participant), None)


def _with_outdated(board: Board, outdated: Mapping[str, Any]) -> Board:
    def marked(entry: BoardEntry) -> BoardEntry:
        reason = value_at(outdated, entry.id, "outdated")
        if reason not in OUTDATED_WORDS:
            return entry if entry.outdated is None else entry.model_copy(update={"outdated": None})
        figure_at = value_at(outdated, entry.id, "figure_at")
        change = {"outdated": reason, "figure_at": figure_at, "seconds_to_compaction": None}
        return entry.model_copy(update=change)

    return board.model_copy(update={"participants": tuple(marked(entry) for entry in board.participants)})


def _with_change(board: Board, participant: str, at: str, change: Mapping[str, Any]) -> Board:
    known = entry_of(board, participant)
    changed = (known or BoardEntry(id=participant, connected=True)).model_copy(update=dict(change))
    if known is None:
        entries = (*board.participants, changed)
    else:
        entries = tuple(changed if entry is known else entry for entry in board.participants)
    return board.model_copy(update={"participants": entries, "at": at})
