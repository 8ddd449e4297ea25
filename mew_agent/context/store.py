"""What a store of a session keeps: the history with what left the context, model calls, the inbox, and the state.

A compaction only changes the view: an evicted item stays in the store, with the revision at which it left. Owns the
contract and a store in memory; `sqlite_store` keeps a session in a file. Does not know the conversation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from mew_protocol.envelope import Envelope

from mew_agent.context.history import Item, Summary
from mew_agent.context.persisted_state import PersistedState, SavedContext
from mew_agent.errors import MewAgentError
from mew_agent.model.usage import Usage

CallRole = Literal["main", "summary", "classification", "utility"]

ChatState = Literal["queued", "answering", "answered", "cancelled", "overheard", "held"]
"""`answered`: the answer exists, but the gateway has not confirmed it. `overheard`: kept as context, not answered.
`held`: from an agent that is not answered until a person or a program speaks."""


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
class CallRecord:
    """One model call."""

    id: str
    role: CallRole
    at: str
    model: str
    revision: int
    usage: Usage | None = None  # None if the provider reported none
    latency_ms: int | None = None
    finish_reason: str | None = None
    failed: str | None = None  # the text of the error
    level: str | None = None  # of main calls: the policy's level after the call
    limit_tokens: int | None = None  # of main calls: the window at that time


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


@dataclass(frozen=True, slots=True)
class InboxChange:
    """A change of the inbox: chats added or replaced, chats removed (by number), and the position reached if new."""

    put: tuple[StoredChat, ...] = ()
    removed: tuple[int, ...] = ()
    position: str | None = None


UNCHANGED = InboxChange()


@dataclass(frozen=True, slots=True)
class StoredInbox:
    """The chats of an inbox, oldest first, and the position in the space up to which they are complete."""

    chats: tuple[StoredChat, ...] = ()
    position: str | None = None


class Store(Protocol):
    """Stores one agent's session. Each method is one transaction."""

    async def load(self) -> Session | None:
        """Load the session; None if it is new."""

    async def keep(
        self,
        session: Session,
        *,
        added: Sequence[Item] = (),
        call: CallRecord | None = None,
        evicted: Sequence[int] = (),
        replaced: Sequence[Item] = (),
        inbox: InboxChange = UNCHANGED,
    ) -> None:
        """Store what changed: items added, evicted (by seq) or replaced by stubs, a call, the inbox, and the state.

        Does not read `session.items`; items are stored one by one as they change.
        """

    async def load_inbox(self) -> StoredInbox:
        """Load the inbox; empty if the session is new."""

    async def change_inbox(self, change: InboxChange) -> None:
        """Store a change of the inbox alone."""

    async def recall(self, item_id: str) -> Item | None:
        """An item by id as it was when it was added, even if it has left the context; None if it is unknown."""

    async def calls(self, newest: int | None = None) -> list[CallRecord]:
        """All calls, or the `newest` ones, oldest first."""

    async def aclose(self) -> None:
        """Close the store; everything stored stays."""


@dataclass
class MemoryStore(Store):
    """A session in memory, which ends with the process."""

    _session: Session | None = None
    _originals: dict[str, Item] = field(default_factory=dict)
    _context: dict[int, Item] = field(default_factory=dict)
    _calls: list[CallRecord] = field(default_factory=list)
    _chats: dict[int, StoredChat] = field(default_factory=dict)
    _position: str | None = None

    async def load(self) -> Session | None:
        if self._session is None:
            return None
        return replace(self._session, items=tuple(self._context[seq] for seq in sorted(self._context)))

    async def keep(
        self,
        session: Session,
        *,
        added: Sequence[Item] = (),
        call: CallRecord | None = None,
        evicted: Sequence[int] = (),
        replaced: Sequence[Item] = (),
        inbox: InboxChange = UNCHANGED,
    ) -> None:
        for item in added:
            self._originals[item.id] = item
            self._context[item.seq] = item
        self._context.update((item.seq, item) for item in replaced if item.seq in self._context)
        for seq in evicted:
            self._context.pop(seq, None)
        if call is not None:
            self._calls.append(call)
        self._session = session
        await self.change_inbox(inbox)

    async def load_inbox(self) -> StoredInbox:
        return StoredInbox(tuple(self._chats[number] for number in sorted(self._chats)), self._position)

    async def change_inbox(self, change: InboxChange) -> None:
        self._chats.update((chat.number, chat) for chat in change.put)
        for number in change.removed:
            self._chats.pop(number, None)
        self._position = change.position or self._position

    async def recall(self, item_id: str) -> Item | None:
        return self._originals.get(item_id)

    async def calls(self, newest: int | None = None) -> list[CallRecord]:
        return self._calls[-newest:] if newest else list(self._calls)

    async def aclose(self) -> None:
        return
