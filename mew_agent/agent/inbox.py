"""The chats that arrive at an agent: a queue of those to answer, those held back, and those to keep as context.

Owns the limits of each, which count by sender, that senders take turns, that only the sender of a chat can cancel it,
and that every change is in the store before anything else happens: a process that is killed finds each chat as far as
it had come. Does not decide which chats are for the agent (see `AddressFilter`), part of a loop of agents (see
`LoopGuard`) or too large (see `HeadroomCheck`), and sends nothing.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal
from uuid import UUID, uuid5

import anyio
from mew_protocol.bounded_dict import BoundedDict, Shares
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.chat import client_of
from mew_protocol.position import Position

from mew_agent.agent.address_filter import AddressFilter
from mew_agent.agent.loop_guard import Verdict, asks_something
from mew_agent.context.store import ChatForm, ChatState, InboxChange, Store, StoredChat, StoreUnusable

logger = logging.getLogger("mew_agent.agent.inbox")

MAX_QUEUED_CHATS = 100
"""How many chats of one sender may wait, for an answer or for room in the context."""

MAX_ALL_CHATS = 1_000
"""How many may wait in all: with many senders, each may have an equal part of this number waiting."""

MAX_OVERHEARD_CHATS = 200
"""Beyond this number the sender with the most overheard chats loses its oldest."""

CHAT_BYTES = 64 * 1024
"""A chat counts for these limits as one for each such part that it begins."""

MAX_HELD_CHATS = 100
"""Beyond this number, the oldest held chats of one sender are only kept as context."""

POSITION_EVERY = 200
"""After how many envelopes without a chat the position is stored; a restart receives at most these again."""

JOINING = "joining"
"""Stored as the position before the first join: a process that is killed then may have been asked already."""

QUEUED: Final[tuple[ChatState, ...]] = ("queued", "answering", "answered", "cancelled")
"""The states of chats that wait in the queue; all but the first were begun before."""

_NAMESPACE = UUID("5f0f3c3e-55a0-4c55-9d5c-0d6f6f0a4c0b")


@dataclass(frozen=True, slots=True)
class Admission:
    """The outcome for a chat that arrived.

    `next`: it is answered as soon as possible; `queued`: after others; `held`: once there is room; `kept`: as context,
    or until a person speaks; `ignored`: it is for others; `refused`: its sender gets no answer, because of `problem`.
    """

    outcome: Literal["next", "queued", "held", "kept", "ignored", "refused"]
    problem: str = ""


class Inbox:
    """The inbox of one agent; its length is the number of queued chats. With `answers` False it queues none."""

    def __init__(self, agent_id: str, address_filter: AddressFilter, store: Store, *, answers: bool) -> None:
        self._agent_id = agent_id
        self._filter = address_filter
        self._store = store
        self._answers = answers
        self._chats: dict[int, StoredChat] = {}
        """All chats but the one being answered, by number; those in one state in their order."""
        self._current: StoredChat | None = None
        self._served: BoundedDict[tuple[str, ...], None] = BoundedDict(2 * MAX_ALL_CHATS)
        """Whose chats were answered, the latest last: senders take turns, and the clients of a sender."""
        self._restored: set[int] = set()
        self._next_number = 0
        self._stored_position: Position | None = None
        self.skips_past = False
        """Whether what was sent in the past is from before the first join, which an earlier process did not survive."""
        self._arrived = anyio.Event()

    def __len__(self) -> int:
        return len(self._in_state(*QUEUED))

    # -- restarts ----------------------------------------------------------------------------------------

    async def load(self) -> str | None:
        """Load the chats of an earlier process. Returns the position it had reached, None if it stored none."""
        stored = await self._store.load_inbox()
        # Those begun come first: the history ends in the middle of one.
        chats = sorted(stored.chats, key=lambda chat: (chat.state == "queued", chat.number))
        self._chats = {chat.number: chat for chat in chats}
        self._restored = set(self._chats)
        self._next_number = max(self._restored, default=-1) + 1
        self._stored_position = None if stored.position is None else Position.parse(stored.position)
        if stored.position == JOINING:
            self.skips_past = True
            return None
        if stored.position is None:
            await self._change(position=JOINING)
        return stored.position

    @property
    def is_answering(self) -> bool:
        """Whether a chat is being answered."""
        return self._current is not None

    @property
    def interrupted(self) -> tuple[StoredChat, ...]:
        """The chats that an earlier process had begun to answer."""
        return self._in_state("answering", "cancelled")

    @property
    def held(self) -> tuple[Envelope, ...]:
        """The chats that are held back, oldest first."""
        return tuple(chat.envelope for chat in self._in_state("held"))

    @property
    def without_room(self) -> tuple[StoredChat, ...]:
        """The chats that are held because they do not fit, oldest first."""
        return self._in_state("no_room")

    @property
    def unread(self) -> tuple[StoredChat, ...]:
        """The chats that will enter the context: overheard, queued, and the one that is being answered."""
        current = () if self._current is None else (self._current,)
        return (*self._in_state("overheard"), *self._in_state(*QUEUED), *current)

    def is_for_us(self, chat: Envelope) -> bool | None:
        """Return whether the rules say that a chat is to be answered; None if they leave that to the model."""
        text = chat.body.get("text")
        return self._filter.check_rules(chat) if self._answers and isinstance(text, str) and text else False

    def is_outdated(self, chat: StoredChat, max_age_seconds: float) -> bool:
        """Return whether a chat from before the start is older than this; chats that arrived since then never are.

        The clock of its sender plays no part.
        """
        if chat.number not in self._restored or chat.state == "answered":
            return False
        return chat.sent_at is not None and time.time() - chat.sent_at > max_age_seconds

    # -- what arrives ------------------------------------------------------------------------------------

    async def add(
        self,
        chat: Envelope,
        *,
        is_busy: bool,
        verdict: Verdict = "answer",
        position: Position | None = None,
        age_seconds: float = 0.0,
        is_past: bool = False,
        refusal: str | None = None,
    ) -> Admission:
        """Queue, hold, remember or refuse a chat.

        `verdict` applies to a chat that is for the agent. `position` is its place in the space. `age_seconds` is how
        long ago the gateway accepted it. `is_past`: it was sent before this process joined. `refusal` is why it is
        refused, whatever the limits say.
        """
        text = chat.body.get("text")
        if not isinstance(text, str) or not text:
            return Admission("ignored")
        is_for_us = False if verdict == "context" and refusal is None else self.is_for_us(chat)
        if is_for_us is None and self._is_full(chat.sender, *QUEUED):
            is_for_us = False  # not addressed to us by name, so no sender waits for a refusal
        if is_for_us is False and not chat.is_for(self._agent_id):
            return Admission("ignored")
        if is_for_us is not False:
            refusal = self._limit_reached(chat.sender, verdict) or refusal
        if refusal is not None:
            # The position moves on: after a restart, the chat would come again although its sender has the refusal.
            await self._change(position=position)
            return Admission("refused", refusal)
        stored = self._stored(chat, position, age_seconds, is_past=is_past)
        if is_for_us is False:
            await self._put(stored, "overheard", position)
            return Admission("kept")
        if verdict == "no_room":
            await self._put(stored, "no_room", position)
            return Admission("held")
        if verdict == "hold":
            await self._put(stored, "held", position)
            of_sender = [one for one in self._in_state("held") if one.envelope.sender == chat.sender]
            for oldest in of_sender[:-MAX_HELD_CHATS]:
                await self._put(oldest, "overheard")
            return Admission("kept")
        await self._change(stored, position=position)
        has_to_wait = is_busy or len(self) > 0
        self._chats[stored.number] = stored
        self._arrived.set()
        return Admission("queued" if is_for_us and has_to_wait else "next")

    def _limit_reached(self, sender: str, verdict: Verdict) -> str | None:
        """Return why no further chat of this sender may wait; None if one may."""
        if verdict == "answer" and self._is_full(sender, *QUEUED):
            return f"{self._count(sender, *QUEUED)} of your chats are waiting already"
        if verdict == "no_room" and self._is_full(sender, "no_room"):
            return f"{self._count(sender, 'no_room')} of your chats are held already"
        return None

    def _stored(self, chat: Envelope, position: Position | None, age_seconds: float, *, is_past: bool) -> StoredChat:
        """Return a chat with the next number."""
        place, weight = None if position is None else str(position), 1 + len(chat.encode()) // CHAT_BYTES
        stored = StoredChat(self._next_number, chat, position=place, sent_at=time.time() - age_seconds, weight=weight)
        self._next_number += 1
        if is_past:
            self._restored.add(stored.number)
        return stored

    async def cancel(self, cancel: Envelope, *, position: Position | None = None) -> None:
        """Remove the queued chats that a `chat/cancel` refers to, and mark the one being answered as cancelled."""
        waiting = self._in_state("queued", "held", "no_room")
        gone = [chat.number for chat in waiting if is_about(cancel, chat.envelope)]
        for number in gone:
            del self._chats[number]
        current = self._current
        if current is not None and is_about(cancel, current.envelope):
            await self.mark_cancelled(position)
        if gone:
            await self._change(removed=gone, position=position)

    async def release(self, senders: Collection[str]) -> None:
        """Queue the held chats of these senders that ask something; keep the others as context."""
        for chat in self._in_state("held"):
            if chat.envelope.sender in senders:
                await self._put(chat, "queued" if asks_something(chat.envelope) else "overheard")

    async def make_room_for(
        self,
        chat: StoredChat,
        form: ChatForm = "whole",
        chosen_by: str | None = None,
        position: Position | None = None,
    ) -> None:
        """Queue a chat that was held because it did not fit, to be read in this form.

        `position` is the place of the chat that chose the form, which a restart then does not read again.
        """
        if self._chats.get(chat.number) is chat:  # else it was cancelled meanwhile
            await self._put(replace(chat, form=form, chosen_by=chosen_by), "queued", position)

    async def discard(self, chat: StoredChat, position: Position | None = None) -> None:
        """Remove a chat that is held because it does not fit; `position` as in `make_room_for`."""
        if self._chats.get(chat.number) is chat:
            del self._chats[chat.number]
            await self._change(removed=(chat.number,), position=position)

    async def reached(self, position: Position | None) -> None:
        """Note that everything up to this position is handled. It is stored now and then, and with each chat."""
        stored = self._stored_position
        if position is None or position == stored:
            return
        if stored is None or stored.epoch != position.epoch or position.sequence - stored.sequence >= POSITION_EVERY:
            await self._change(position=position)

    async def forget_answered(self, answer: Envelope) -> None:
        """Remove the chat that an earlier process answered with this envelope, although it could not record that."""
        for chat in self._in_state(*QUEUED):
            if self.id_for(chat, "answer") == answer.id:
                del self._chats[chat.number]
                await self._change(removed=(chat.number,))

    # -- answering ---------------------------------------------------------------------------------------

    async def next(self, until_active: Callable[[], Awaitable[None]]) -> StoredChat:
        """Wait for the next chat that is for the agent, and until the agent is active. `finish` ends it."""
        while True:
            while not len(self):
                self._arrived = anyio.Event()
                await self._arrived.wait()
            await until_active()
            # It stays in the queue meanwhile: the filter may ask a model, and a cancellation has to find the chat.
            chat = self._next_queued()
            if chat is None:
                continue
            is_for_us = chat.state != "queued" or await self._filter.is_for_us(chat.envelope)
            if self._chats.get(chat.number) is not chat:
                continue  # cancelled meanwhile
            for owner in _owners(chat):
                self._served[owner] = None
            if is_for_us:
                self._current = self._chats.pop(chat.number)
                return chat
            await self._put(chat, "overheard")

    async def begin(self, chat: StoredChat, turn: int, first_seq: int) -> StoredChat:
        """Record that a chat is being answered again, in this turn, with the items from `first_seq` on."""
        begun = replace(chat, state="answering", turn=turn, first_seq=first_seq, attempts=chat.attempts + 1)
        return await self._update(begun)

    async def keep_answer(self, chat: StoredChat, text: str) -> StoredChat:
        """Keep the finished answer until the gateway has confirmed it."""
        return await self._update(replace(chat, state="answered", answer=text))

    async def mark_cancelled(self, position: Position | None = None) -> None:
        """Record that the chat being answered was cancelled: a restarted process does not answer it either."""
        if self._current is not None:
            self._current = replace(self._current, state="cancelled")
            await self._change(self._current, position=position)

    async def finish(self, chat: StoredChat) -> None:
        """Remove a chat that needs nothing more; does nothing for one that was put back or is remembered."""
        if self._current is None:
            return
        self._current = None
        self._restored.discard(chat.number)
        await self._change(removed=(chat.number,))

    def put_back(self, chat: StoredChat) -> None:
        """Return a chat to the head of the queue."""
        self._current = None
        self._chats = {chat.number: chat, **self._chats}
        self._arrived.set()

    def take_overheard(self) -> Iterator[StoredChat]:
        """Remove and return the overheard chats, oldest first. They stay in the store."""
        while (chat := next(iter(self._in_state("overheard")), None)) is not None:
            yield self._chats.pop(chat.number)

    async def forget_overheard(self, chat: StoredChat) -> None:
        """Remove a chat that `take_overheard` returned from the store, too."""
        await self._change(removed=(chat.number,))

    async def remember(self, chat: StoredChat) -> None:
        """Keep a chat as context instead of answering it."""
        self._current = None
        await self._put(chat, "overheard")

    # -- ids ---------------------------------------------------------------------------------------------

    def id_for(self, chat: StoredChat, what: str) -> str:
        """Return the id of an envelope about a chat: `answer`, `reasoning`, `conclusion`, or `no room`.

        It is the same after a restart, so that the gateway recognises a repetition. Each attempt has a reasoning of its
        own, and a conclusion.
        """
        asked, attempt = chat.envelope, f" {chat.attempts}" if what in ("reasoning", "conclusion") else ""
        # Some clients count their ids from 1 at every start, so an id alone does not identify a chat.
        place = chat.position or f"#{chat.number}"
        parts = (self._agent_id, asked.sender, asked.id, asked.ts, place, f"{what}{attempt}")
        return str(uuid5(_NAMESPACE, "\n".join(parts)))

    # -- storing -----------------------------------------------------------------------------------------

    def _in_state(self, *states: ChatState) -> tuple[StoredChat, ...]:
        return tuple(chat for chat in self._chats.values() if chat.state in states)

    def _next_queued(self) -> StoredChat | None:
        """Return the chat to answer next: one that was begun, else the oldest of the sender answered longest ago."""
        turns = {owner: turn for turn, owner in enumerate(self._served, start=1)}

        def place(chat: StoredChat) -> tuple[int, ...]:
            return (0,) if chat.state != "queued" else tuple(turns.get(owner, 0) for owner in _owners(chat))

        return min(self._in_state(*QUEUED), key=place, default=None)

    def _count(self, sender: str, *states: ChatState) -> int:
        return sum(chat.envelope.sender == sender for chat in self._in_state(*states))

    def _is_full(self, sender: str, *states: ChatState) -> bool:
        """Return whether no further chat of this sender may wait in these states."""
        weights = Counter[str]()
        for chat in self._in_state(*states):
            weights[chat.envelope.sender] += chat.weight
        return weights[sender] >= max(1, min(MAX_QUEUED_CHATS, MAX_ALL_CHATS // max(1, len(weights))))

    async def _put(self, chat: StoredChat, state: ChatState, position: Position | None = None) -> None:
        """Make a chat the last one in this state. Forgets the oldest overheard chats beyond the limit."""
        self._chats.pop(chat.number, None)
        self._chats[chat.number] = chat = replace(chat, state=state)
        overheard, forgotten = Shares[int](), list[int]()
        for one in self._in_state("overheard"):
            overheard.add(one.number, one.envelope.sender, one.weight)
        while (number := overheard.surplus(MAX_OVERHEARD_CHATS)) is not None:
            overheard.discard(number)
            forgotten.append(number)
            del self._chats[number]
        await self._change(chat, removed=forgotten, position=position)
        if state == "queued":
            self._arrived.set()

    async def _update(self, chat: StoredChat) -> StoredChat:
        if self._current is not None and self._current.state == "cancelled":
            chat = replace(chat, state="cancelled")
        self._current = chat
        await self._change(chat)
        return chat

    async def _change(
        self, *chats: StoredChat, removed: Sequence[int] = (), position: Position | str | None = None
    ) -> None:
        """Store a change. If the store fails, the agent still answers; only a restart would forget it."""
        old = self._stored_position
        # Nothing may move the position back: a chat that waited for its classification is older than the newest.
        if isinstance(position, Position) and old is not None and old.epoch == position.epoch:
            position = position if position.sequence > old.sequence else None
        try:
            place = None if position is None else str(position)
            await self._store.change_inbox(InboxChange(chats, tuple(removed), place))
        except StoreUnusable as error:
            logger.warning("inbox not stored: %s", error)
            return
        self._stored_position = position if isinstance(position, Position) else old


def _owners(chat: StoredChat) -> tuple[tuple[str, ...], ...]:
    """Return the owners that take turns: the sender, and the client named by its session."""
    asked = chat.envelope
    return (asked.sender,), (asked.sender, client_of(asked.body.get("session")))


def is_about(cancel: Envelope, chat: Envelope) -> bool:
    """Return whether a `chat/cancel` cancels this chat; only the sender of the chat can."""
    return cancel.refers_to(chat.id) and chat.sender == cancel.sender
