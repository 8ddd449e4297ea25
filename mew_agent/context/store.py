"""The contents of a session's store: the history with removed items, model calls, the inbox, and the state.

`sqlite_store` stores them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from mew_protocol.envelope import Envelope, wire_time
from mew_protocol.payloads.text_fit import Fit

from mew_agent.context.archive import ArchivedCompaction
from mew_agent.context.history import Item, Summary
from mew_agent.context.message_facts import NO_RECEIPTS, ReceiptChange
from mew_agent.context.persisted_state import CallRecord, PersistedState, SavedContext
from mew_agent.errors import MewAgentError

ChatState = Literal["queued", "answering", "answered", "cancelled", "overheard", "held", "no_room"]
"""`answered`: an answer or a refusal exists, but the gateway has not confirmed it. `overheard`: kept as context, not
answered. `held`: from an agent that gets no answer before a person or a program sends a chat. `no_room`: it does not
fit now."""

ChatForm = Literal["whole", "reference", "digest"]
"""How a chat enters the context."""


@dataclass(eq=False)
class StoreUnusable(MewAgentError):
    """The session file cannot be used; `problem` says why."""

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"the session file {self.path} cannot be used: {self.problem}"


class StoreDamaged(StoreUnusable):
    """The session file is damaged: part of it may be lost."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits for removed items. None: no limit."""

    max_age_days: float | None = None
    max_bytes: int | None = None
    max_compactions: int | None = None

    def oldest(self, now: datetime) -> str | None:
        """Return the time before which items are too old; None without an age limit."""
        if self.max_age_days is None:
            return None
        return (now.astimezone(UTC) - timedelta(days=self.max_age_days)).strftime("%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True, slots=True)
class Session:
    """The state that a restarted agent continues from."""

    items: tuple[Item, ...] = ()
    summary: Summary | None = None
    revision: int = 0
    next_seq: int = 0
    turn: int = 0
    context: SavedContext = field(default_factory=SavedContext)
    persisted: PersistedState = field(default_factory=PersistedState)


@dataclass(frozen=True, slots=True)
class ChatRefusal:
    """Why a chat gets no answer; `code` and `fit` as in `Acknowledge`."""

    problem: str
    code: str | None = None
    fit: Fit | None = None


@dataclass(frozen=True, slots=True)
class StoredChat:
    """A chat that an agent received and has not finished."""

    number: int  # orders chats by arrival
    envelope: Envelope
    state: ChatState = "queued"
    position: str | None = None  # its place in the space; None if the gateway does not number envelopes
    turn: int = -1  # its turn, while it is answered
    first_seq: int = -1  # the first item of that turn
    attempts: int = 0  # number of processes that began to answer it
    answer: str | None = None  # the text of the finished answer, or why it is refused
    refusal: ChatRefusal | None = None  # refusal for its sender, instead of an answer
    form: ChatForm = "whole"
    sent_at: float | None = None  # when the gateway accepted it, in seconds since 1970 by our own clock
    chosen_by: str | None = None  # the chat in which its sender chose the form
    weight: int = 1  # number of chats that it counts as for the limits of an inbox
    joined: int | None = None  # number of another chat that is answered in the same turn, if any
    section: str = ""  # name of its section in an answer to several chats; empty without sections

    @property
    def queued_at(self) -> str | None:
        """The time at which the gateway accepted it, in the wire's format."""
        return None if self.sent_at is None else wire_time(self.sent_at)


@dataclass(frozen=True, slots=True)
class InboxChange:
    """A change of the inbox: chats added or replaced, chats removed (by number), and the position reached if new.

    `receipts` are facts about these chats.
    """

    put: tuple[StoredChat, ...] = ()
    removed: tuple[int, ...] = ()
    position: str | None = None
    receipts: ReceiptChange = NO_RECEIPTS


UNCHANGED = InboxChange()


@dataclass(frozen=True, slots=True)
class SessionChange:
    """One change of a session: items are added, evicted (by seq), replaced by stubs, or restored.

    `compaction` archives the evicted and replaced items of this change, or undoes an earlier compaction. `receipts` are
    facts about the items' messages.
    """

    added: Sequence[Item] = ()
    call: CallRecord | None = None
    evicted: Sequence[int] = ()
    replaced: Sequence[Item] = ()
    restored: Sequence[Item] = ()
    compaction: ArchivedCompaction | None = None
    inbox: InboxChange = UNCHANGED
    receipts: ReceiptChange = NO_RECEIPTS


NO_CHANGE = SessionChange()


@dataclass(frozen=True, slots=True)
class StoredInbox:
    """The chats of an inbox, oldest first, and the position in the space up to which the inbox is complete."""

    chats: tuple[StoredChat, ...] = ()
    position: str | None = None
