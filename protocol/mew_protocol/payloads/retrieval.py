"""[pure] `participant/*` about past compactions: list, show and undo them, and search removed messages.

Owns the requests and their answers. An agent without the capability for an answer refuses the request with a
`participant/status`, so that its sender does not wait.
"""

from typing import Final, Literal

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.context_report import LastCompaction
from mew_protocol.payloads.base import Payload

MAX_RECALLED: Final = 50


class CompactionEntry(LastCompaction):
    """One change of a context: a compaction, a `forget`, a `clear` or an `undo`, as its trigger says.

    `asked_by` is the requester; absent if the agent decided itself. `items` counts the items removed or replaced with
    notes. `undoes` and `undone_by` are numbers of other entries. `problem` says why it cannot be fully shown or undone:
    `damaged`, or `pruned` if the store deleted some of its items. An undo frees a negative amount.
    """

    number: int
    asked_by: str | None = None
    items: int = 0
    undoes: int | None = None
    undone_by: int | None = None
    problem: Literal["damaged", "pruned"] | None = None


class ArchivedItem(Payload):
    """An item that left the context. `clipped_chars` is the number of characters that an answer omits."""

    seq: int
    id: str
    role: str
    at: str
    text: str
    sender: str | None = None
    turn: int | None = None
    clipped_chars: int = 0


class RequestHistory(Payload, kind=kinds.PARTICIPANT_REQUEST_HISTORY):
    """List the compactions, or show the one with this `number`: its summary and the replaced messages.

    The answer has the items after the seq `after`; if its `next` is set, there are more.
    """

    number: int | None = Field(default=None, ge=1)
    after: int = Field(default=-1, ge=-1)


class CompactionHistory(Payload, kind=kinds.PARTICIPANT_HISTORY):
    """The answer to `participant/request-history`: all entries, oldest first, or the requested one with its texts.

    `dropped` counts older entries that are no longer kept. `summary` is the entry's summary, absent without one;
    `previous_summary` is the one before it. `error` says why the entry or the archive is missing.
    """

    entries: tuple[CompactionEntry, ...] = ()
    dropped: int = 0
    summary: str | None = None
    previous_summary: str | None = None
    items: tuple[ArchivedItem, ...] = ()
    next: int | None = None
    error: str | None = None


class Undo(Payload, kind=kinds.PARTICIPANT_UNDO):
    """Undo a compaction, a forget or a clear (default: the newest that can be undone)."""

    number: int | None = Field(default=None, ge=1)
    reason: str | None = None


class UndoDone(Payload, kind=kinds.PARTICIPANT_UNDO_DONE):
    """The answer to every `participant/undo`. `reason` says why it is refused; a refused undo changes nothing.

    `number` is the undone entry, `entry` the new one. `restored_tokens` is the growth of the context.
    """

    status: Literal["undone", "refused"]
    number: int | None = None
    entry: int | None = None
    reason: str | None = None
    restored_messages: int | None = None
    restored_tokens: int | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    max_tokens: int | None = None


class Recall(Payload, kind=kinds.PARTICIPANT_RECALL):
    """Search removed items for words."""

    words: str = Field(min_length=1, max_length=1_000)
    limit: int = Field(default=10, ge=1, le=MAX_RECALLED)


class RecallDone(Payload, kind=kinds.PARTICIPANT_RECALL_DONE):
    """The answer to `participant/recall`: an extract of each matching item, best match first.

    `error` says why nothing can be searched.
    """

    found: tuple[ArchivedItem, ...] = ()
    error: str | None = None
