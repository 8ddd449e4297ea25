"""What a store of a session keeps: the history with what left the context, model calls, the inbox, and the state.

A compaction only changes the view: an evicted item stays in the store, with the revision at which it left. Owns the
contract and a store in memory; `sqlite_store` keeps a session in a file. Does not know the conversation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, Protocol

from mew_protocol.envelope import Envelope
from mew_protocol.payloads.compactions import CompactionEntry

from mew_agent.context.archive import ArchivedCompaction
from mew_agent.context.history import Item, Summary
from mew_agent.context.persisted_state import CallRecord, PersistedState, SavedContext
from mew_agent.context.sqlite_archive import search_items
from mew_agent.errors import MewAgentError
from mew_agent.tokens.sizes import in_thread

ChatState = Literal["queued", "answering", "answered", "cancelled", "overheard", "held", "no_room"]
"""`answered`: the answer exists, but the gateway has not confirmed it. `overheard`: kept as context, not answered.
`held`: from an agent that gets no answer before a person or a program sends a chat. `no_room`: it does not fit now."""

ChatForm = Literal["whole", "reference", "digest"]
"""How a chat enters the context."""


@dataclass(eq=False)
class StoreUnusable(MewAgentError):
    """The session file cannot be used; `problem` says why."""

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"the session file {self.path} cannot be used: {self.problem}"


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits for what a store keeps of items that left the context. None: no limit."""

    max_age_days: float | None = None
    max_bytes: int | None = None
    max_compactions: int | None = None

    def oldest(self, now: datetime) -> str | None:
        """The time before which items are too old; None without a limit of age."""
        if self.max_age_days is None:
            return None
        return (now.astimezone(UTC) - timedelta(days=self.max_age_days)).strftime("%Y-%m-%dT%H:%M:%S")


class StoreDamaged(StoreUnusable):
    """The session file is damaged: part of it may be lost."""


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
class StoredChat:
    """A chat that an agent received and has not finished."""

    number: int  # orders chats by arrival
    envelope: Envelope
    state: ChatState = "queued"
    position: str | None = None  # its place in the space; None if the gateway does not number envelopes
    turn: int = -1  # its turn, while it is answered
    first_seq: int = -1  # from which items belong to that turn
    attempts: int = 0  # how often a process began to answer it
    answer: str | None = None  # the text of the finished answer
    form: ChatForm = "whole"
    chosen_by: str | None = None  # the chat with which its sender chose the form


@dataclass(frozen=True, slots=True)
class InboxChange:
    """A change of the inbox: chats added or replaced, chats removed (by number), and the position reached if new."""

    put: tuple[StoredChat, ...] = ()
    removed: tuple[int, ...] = ()
    position: str | None = None


UNCHANGED = InboxChange()


@dataclass(frozen=True, slots=True)
class SessionChange:
    """What happens to a session at once: items are added, evicted (by seq), replaced by stubs, or restored.

    `compaction` archives what the same change evicts and replaces, or undoes an earlier one.
    """

    added: Sequence[Item] = ()
    call: CallRecord | None = None
    evicted: Sequence[int] = ()
    replaced: Sequence[Item] = ()
    restored: Sequence[Item] = ()
    compaction: ArchivedCompaction | None = None
    inbox: InboxChange = UNCHANGED


NO_CHANGE = SessionChange()


@dataclass(frozen=True, slots=True)
class StoredInbox:
    """The chats of an inbox, oldest first, and the position in the space up to which they are complete."""

    chats: tuple[StoredChat, ...] = ()
    position: str | None = None


class Store(Protocol):
    """Stores one agent's session. Each method is one transaction."""

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
        """An item by id as it was when it was added, even if it has left the context; None if it is unknown."""

    async def compactions(self) -> list[CompactionEntry]:
        """All archived compactions, oldest first; those with lower numbers were deleted."""

    async def archived(self, number: int) -> ArchivedCompaction | None:
        """A compaction with those of its items that are still stored, as they were in context; None if unknown."""

    async def search(self, words: str, limit: int) -> list[Item]:
        """Items that left the context or became notes, and contain these words, the best match first."""

    async def calls(self, newest: int | None = None) -> list[CallRecord]:
        """All calls, or the `newest` ones, oldest first."""

    async def aclose(self) -> None:
        """Close the store; everything stored stays."""


@dataclass
class MemoryStore(Store):
    """A session in memory, which ends with the process. `limits` bound what has left the context."""

    limits: StoreLimits = field(default_factory=StoreLimits)
    _session: Session | None = None
    _originals: dict[int, Item] = field(default_factory=dict)
    _context: dict[int, Item] = field(default_factory=dict)
    _left_chars: int = 0
    _compactions: dict[int, ArchivedCompaction] = field(default_factory=dict)
    _compactions_made: int = 0
    _calls: list[CallRecord] = field(default_factory=list)
    _chats: dict[int, StoredChat] = field(default_factory=dict)
    _position: str | None = None

    async def load(self) -> Session | None:
        if self._session is None:
            return None
        return replace(self._session, items=tuple(self._context[seq] for seq in sorted(self._context)))

    async def keep(self, session: Session, change: SessionChange = NO_CHANGE) -> int | None:
        for item in change.added:
            self._originals[item.seq] = self._context[item.seq] = item
        number = None if change.compaction is None else self._archive(change.compaction)
        self._context.update((item.seq, item) for item in change.replaced if item.seq in self._context)
        for item in change.restored:
            self._left_chars -= 0 if item.seq in self._context else self._chars(item.seq)
            self._context[item.seq] = item
        for seq in change.evicted:
            if self._context.pop(seq, None) is not None:
                self._left_chars += self._chars(seq)
        self._drop_beyond_limits()
        if change.call is not None:
            self._calls.append(change.call)
        self._session = session
        await self.change_inbox(change.inbox)
        return number

    def _archive(self, compaction: ArchivedCompaction) -> int:
        self._compactions_made = number = self._compactions_made + 1
        self._compactions[number] = _with(compaction, number=number)
        undone = self._compactions.get(compaction.entry.undoes or 0)
        if undone is not None:
            self._compactions[undone.entry.number] = _with(undone, undone_by=number)
        if self.limits.max_compactions is not None:
            self._compactions.pop(number - self.limits.max_compactions, None)
        return number

    def _chars(self, seq: int) -> int:
        return len(self._originals[seq].text()) if seq in self._originals else 0

    def _drop_beyond_limits(self) -> None:
        oldest, most = self.limits.oldest(datetime.now(UTC)), self.limits.max_bytes
        if (most is None or self._left_chars <= most) and oldest is None:
            return
        dropped: set[int] = set()
        for seq in sorted(self._originals.keys() - self._context.keys()):
            is_too_old = oldest is not None and self._originals[seq].at < oldest
            if not is_too_old and (most is None or self._left_chars <= most):
                break
            self._left_chars -= self._chars(seq)
            del self._originals[seq]
            dropped.add(seq)
        for number, one in self._compactions.items() if dropped else ():
            kept = tuple(item for item in one.items if item.seq not in dropped)
            problem = "pruned" if len(kept) < one.entry.items else None
            self._compactions[number] = replace(_with(one, problem=problem), items=kept)

    async def load_inbox(self) -> StoredInbox:
        return StoredInbox(tuple(self._chats[number] for number in sorted(self._chats)), self._position)

    async def change_inbox(self, change: InboxChange) -> None:
        self._chats.update((chat.number, chat) for chat in change.put)
        for number in change.removed:
            self._chats.pop(number, None)
        self._position = change.position or self._position

    async def recall(self, item_id: str) -> Item | None:
        return next((item for item in reversed(self._originals.values()) if item.id == item_id), None)

    async def compactions(self) -> list[CompactionEntry]:
        return [one.entry for one in self._compactions.values()]

    async def archived(self, number: int) -> ArchivedCompaction | None:
        return self._compactions.get(number)

    async def search(self, words: str, limit: int) -> list[Item]:
        left = [item for seq, item in self._originals.items() if self._context.get(seq) != item]
        return await in_thread(lambda: search_items(left, words, limit))

    async def calls(self, newest: int | None = None) -> list[CallRecord]:
        return self._calls[-newest:] if newest else list(self._calls)

    async def aclose(self) -> None:
        return


def _with(compaction: ArchivedCompaction, **changes: object) -> ArchivedCompaction:
    return replace(compaction, entry=compaction.entry.model_copy(update=changes))
