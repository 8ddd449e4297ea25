"""The contents of a session's store: the history with removed items, model calls, the inbox, and the state.

A compaction only changes the view: an evicted item stays in the store, with the revision at which it left. Owns the
contract; `sqlite_store` implements it. Does not know the conversation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, Protocol

from mew_protocol.envelope import Envelope, wire_time
from mew_protocol.payloads.compactions import CompactionEntry
from mew_protocol.payloads.fit import Fit

from mew_agent.context.archive import ArchivedCompaction, ItemLife
from mew_agent.context.history import Item, Summary
from mew_agent.context.persisted_state import CallRecord, PersistedState, SavedContext
from mew_agent.context.receipts import NO_RECEIPTS, Follow, MessageKey, MessageRecord, ReceiptChange
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
    """Limits for items that left the context. None: no limit."""

    max_age_days: float | None = None
    max_bytes: int | None = None
    max_compactions: int | None = None

    def oldest(self, now: datetime) -> str | None:
        """Return the time before which items are too old; None without a limit of age."""
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
    first_seq: int = -1  # from which items belong to that turn
    attempts: int = 0  # how often a process began to answer it
    answer: str | None = None  # the text of the finished answer, or why it is refused
    refusal: ChatRefusal | None = None  # what its sender gets instead of an answer
    form: ChatForm = "whole"
    sent_at: float | None = None  # when the gateway accepted it, in seconds since 1970 by our own clock
    chosen_by: str | None = None  # the chat with which its sender chose the form
    weight: int = 1  # as how many chats it counts for the limits of an inbox
    joined: int | None = None  # the number of the chat in whose turn it is answered, if that is another one
    section: str = ""  # the name of its section in an answer to several chats; empty if the answer has no sections

    @property
    def queued_at(self) -> str | None:
        """When the gateway accepted it, as the wire writes times."""
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

    `compaction` archives what the same change evicts and replaces, or undoes an earlier one. `receipts` are facts about
    the messages that the items hold.
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
    """The chats of an inbox, oldest first, and the position in the space up to which they are complete."""

    chats: tuple[StoredChat, ...] = ()
    position: str | None = None


class Store(Protocol):
    """Stores one agent's session. Each method is one transaction; a cancelled task completes its change."""

    async def load(self) -> Session | None:
        """Load the session; None if it is new."""

    async def keep(self, session: Session, change: SessionChange = NO_CHANGE) -> int | None:
        """Store a change and the whole state. Returns the number that its compaction gets, if it has one.

        Does not read `session.items`; items are stored one by one as they change.
        """

    async def load_inbox(self) -> StoredInbox:
        """Load the inbox; empty if the session is new."""

    async def change_inbox(self, change: InboxChange) -> None:
        """Store a change of the inbox alone."""

    async def recall(self, item_id: str) -> Item | None:
        """Return an item by id as it was when it was added, even if it has left the context; None if it is unknown."""

    async def compactions(self) -> list[CompactionEntry]:
        """Return all archived compactions, oldest first; those with lower numbers were deleted."""

    async def archived(self, number: int) -> ArchivedCompaction | None:
        """Return a compaction with the items still stored, as they were in context; None if it is unknown."""

    async def search(self, words: str, limit: int) -> list[Item]:
        """Return items that left the context or became notes, and contain these words, the best match first."""

    async def message(self, key: MessageKey) -> MessageRecord:
        """Return all that is kept of a message for its receipt."""

    async def senders_of(self, message_id: str) -> list[str]:
        """Return the participants that sent a message with this id, the newest first."""

    async def follows(self) -> list[Follow]:
        """Return the followers of receipts, the newest thousand."""

    async def prompts_read(self) -> int:
        """Return the number of the newest prompt of a history that another program keeps."""

    async def life_of(self, seq: int) -> ItemLife | None:
        """Return an item as it was added, with the changes since it first left; None if it is not stored any more."""

    async def calls(self, newest: int | None = None) -> list[CallRecord]:
        """Return all calls, or the `newest` ones, oldest first."""

    async def aclose(self) -> None:
        """Close the store; everything stored stays."""
