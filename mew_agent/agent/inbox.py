"""The inbox of an agent: chats to answer, waiting chats, and chats kept as context.

Owns the limits of each sender, the turns that senders take, and the rule that only the sender can cancel a chat. Stores
each change before anything else happens, so a killed process continues each chat where it was. Others decide which
chats are for the agent (`AddressFilter`), part of an agent loop (`LoopGuard`) or too large (`HeadroomCheck`). Sends
nothing.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal
from uuid import UUID, uuid5

import anyio
from mew_listener.bounded_dict import BoundedDict, Shares, weight_of
from mew_protocol.envelope import Envelope
from mew_protocol.ids import Position
from mew_protocol.json_values import text_at
from mew_protocol.payloads.chat import client_of
from mew_protocol.payloads.text_fit import Fit

from mew_agent.agent.address_filter import AddressFilter
from mew_agent.agent.loop_guard import LOOP_STOPPED, Verdict, asks_something
from mew_agent.agent.shared_turn import (
    Rank,
    answered_together,
    begun,
    cancelled_turn,
    continued,
    entering,
    fresh,
    ranks_of,
    replies,
    to_answer_next,
)
from mew_agent.context.message_facts import (
    NO_RECEIPTS,
    Ending,
    MessageEnding,
    MessageKey,
    ReceiptChange,
    ReceiptFollower,
)
from mew_agent.context.sqlite_store import Store
from mew_agent.context.store import ChatForm, ChatRefusal, ChatState, InboxChange, StoredChat, StoreUnusable
from mew_agent.participant.messenger import timestamp
from mew_agent.settings import BetweenSteps

logger = logging.getLogger("mew_agent.agent.inbox")

MAX_QUEUED_CHATS = 100
"""How many chats of one sender may wait, for an answer or for room in the context."""

MAX_ALL_CHATS = 1_000
"""How many may wait in all: with many senders, each may have an equal part of this number waiting.

For these limits, a long chat counts as several (see `weight_of`).
"""

MAX_OVERHEARD_CHATS = 200
"""Beyond this number the sender with the most overheard chats loses its oldest."""

MAX_STOPPED_CHATS = 100
"""Beyond this number, the oldest chats of one sender in a stopped loop are only kept as context."""

POSITION_EVERY = 200
"""After how many envelopes without a chat the position is stored; a restart receives at most these again."""

JOINING = "joining"
"""Stored as the position before the first join: a process that is killed then may have been asked already."""

QUEUED: Final[tuple[ChatState, ...]] = ("queued", "answering", "answered", "cancelled")
"""The states of chats that wait in the queue; all but the first were begun before."""

_NAMESPACE = UUID("5f0f3c3e-55a0-4c55-9d5c-0d6f6f0a4c0b")


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision about a chat that arrived. The inbox makes it once, carries it out and reports it to the sender.

    `refused` has the reason in `refusal`; a chat for others is `ignored`. `fit` has the figures of a chat that does not
    fit now. With `is_certain` False, the model decides first whether the chat is for the agent.
    """

    what: Verdict | Literal["ignored", "refused"]
    refusal: ChatRefusal | None = None
    fit: Fit | None = None
    is_certain: bool = True


Outcome = Literal["next", "queued", "no_room", "kept", "ignored", "refused"]
"""The outcome of a chat that arrived: answered as soon as possible, after others, or once there is room; kept as
context, or until a person speaks; ignored; or refused."""


class Inbox:
    """The inbox of one agent."""

    def __init__(
        self,
        agent_id: str,
        address_filter: AddressFilter,
        store: Store,
        *,
        together: int | None = None,
        is_agent: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`together` is the number of chats that one turn answers while more wait (None: one)."""
        self._agent_id = agent_id
        self.address_filter = address_filter
        self._store = store
        self._chats: dict[int, StoredChat] = {}
        """All chats but the one being answered, by number; those in one state in their order."""
        self.current: StoredChat | None = None
        """The chat that is being answered."""
        self.joined: tuple[StoredChat, ...] = ()
        """The other chats that the same turn answers, in the order in which they joined it."""
        self.together, self._is_agent = together, is_agent
        self._leaving: dict[int, StoredChat] = {}
        """The chats that were taken out, until their outcome is stored."""
        self._undecided: set[int] = set()
        """The chats that may not be for the agent: its model, or rules that are new since a restart, decide."""
        self._turns: BoundedDict[tuple[str, ...], int] = BoundedDict(2 * MAX_ALL_CHATS)
        """When each sender and client was answered last, by a growing number: they take turns."""
        self._turn = 0
        self._next_number = self._first_live = 0
        """The numbers of the next chat, and of the first one that was sent since this process joined."""
        self._stored_position: Position | None = None
        self.skips_past = False
        """Whether past envelopes are from before the first join: an earlier process was killed while it joined."""
        self._arrived = anyio.Event()

    def in_state(self, *states: ChatState) -> tuple[StoredChat, ...]:
        """Return the chats in these states, oldest first, except those being answered."""
        return tuple(chat for chat in self._chats.values() if chat.state in states)

    @property
    def unfinished(self) -> tuple[StoredChat, ...]:
        """All stored chats, oldest first, except those of the running turn."""
        return tuple(self._chats.values())

    @property
    def answering(self) -> tuple[StoredChat, ...]:
        """The chats that the running turn answers, its question first."""
        return () if self.current is None else (self.current, *self.joined)

    @property
    def _is_answered(self) -> bool:
        """Whether the running turn has its answer, so that cancelling is too late."""
        return self.current is not None and self.current.state == "answered"

    @property
    def is_idle(self) -> bool:
        """Whether no chat waits, and none continues a cancelled turn."""
        is_cancelled = self.current is not None and self.current.state == "cancelled"
        return not self.in_state(*QUEUED) and not (is_cancelled and self.joined)

    # -- restarts ----------------------------------------------------------------------------------------

    async def load(self) -> str | None:
        """Load the chats of an earlier process. Returns the last position it stored; None if it stored none."""
        stored = await self._store.load_inbox()
        was_begun = {chat.number for chat in stored.chats if chat.state in QUEUED[1:]}
        found = (one if one.joined is None or one.joined in was_begun else fresh(one) for one in stored.chats)
        # Begun chats come first: the history ends in the middle of one.
        chats = sorted(found, key=lambda chat: (chat.state == "queued", chat.number))
        self._chats = {chat.number: chat for chat in chats}
        self._undecided = set(self._chats)
        self._next_number = self._first_live = max(self._chats, default=-1) + 1
        self._stored_position = None if stored.position is None else Position.parse(stored.position)
        if stored.position == JOINING:
            self.skips_past = True
            return None
        if stored.position is None:
            await self._change(position=JOINING)
        return stored.position

    def find(self, key: MessageKey) -> StoredChat | None:
        """Return the newest unfinished chat with this sender and id; None if there is none."""
        chats = (*self._leaving.values(), *self._chats.values(), *self.answering)
        found = (one for one in chats if MessageKey.of(one.envelope) == key)
        return max(found, key=lambda one: one.number, default=None)

    def senders_of(self, message_id: str) -> tuple[str, ...]:
        """Return the senders of unfinished chats with this id."""
        chats = (*self._chats.values(), *self.answering)
        return tuple(dict.fromkeys(one.envelope.sender for one in chats if one.envelope.id == message_id))

    def place_of(self, chat: StoredChat) -> int | None:
        """Return the 1-based place of a chat in the queue; None if it does not wait."""
        if self._chats.get(chat.number) is not chat or chat.state != "queued":
            return None
        begun = len(self.in_state(*QUEUED[1:]))
        waiting: dict[str, list[int]] = {}
        for one in self.in_state("queued"):
            waiting.setdefault(one.envelope.sender, []).append(one.number)
        turns, ranks = self._turns, self._ranks()
        order = sorted(waiting, key=lambda sender: (ranks.get(sender, ()), turns.get((sender,), 0), waiting[sender][0]))
        own = chat.envelope.sender
        earlier = waiting[own].index(chat.number)  # senders take turns, so each other one has this many first
        before = order[: order.index(own)]
        equal = [sender for sender in order if sender != own and ranks.get(sender) == ranks.get(own)]
        others = sum(min(len(waiting[sender]), earlier + (sender in before)) for sender in equal)
        ahead = sum(len(waiting[sender]) for sender in before if sender not in equal)
        return begun + ahead + earlier + others + 1

    def _ranks(self) -> dict[str, Rank]:
        """Return the ranks of senders if more chats wait than one turn answers; else none."""
        waiting = self.in_state("queued")
        is_crowded = self.together is not None and len(waiting) > self.together
        return ranks_of(waiting, self._is_agent) if is_crowded else {}

    def is_outdated(self, chat: StoredChat, max_age_seconds: float) -> bool:
        """Return whether a chat from before the start exceeds this age. Newer chats never do.

        Uses the gateway's clock, not the sender's.
        """
        if chat.number >= self._first_live or chat.state == "answered":
            return False
        return chat.sent_at is not None and time.time() - chat.sent_at > max_age_seconds

    # -- what arrives ------------------------------------------------------------------------------------

    def decide(
        self,
        chat: Envelope,
        is_for_us: bool | None,
        verdict: Callable[[], Verdict] = lambda: "answer",
        refusal: ChatRefusal | None = None,
        fit: Fit | None = None,
    ) -> Admission:
        """Decide about a chat that arrived. `is_for_us` None: the model decides whether it is for the agent.

        `refusal` is a reason to refuse it regardless of limits. Without one, `verdict` is called once and may report a
        limit. `fit` has the figures of a chat that does not fit.
        """
        as_context = Admission("context" if chat.is_for(self._agent_id) else "ignored")
        if not text_at(chat.body, "text"):
            return Admission("ignored")
        if is_for_us is False:
            return as_context
        what = "answer" if refusal is not None else verdict()
        if refusal is None and (problem := self._limit_reached(chat.sender, what)) is not None:
            refusal = ChatRefusal(problem, "queue_full")
        if refusal is None and what == "context":
            return as_context  # a chat for anyone needs no further decision
        if refusal is None:
            return Admission(what, fit=fit, is_certain=is_for_us is True)
        # A chat that does not name us is not a request, so no sender waits for a refusal.
        return Admission("refused", refusal) if is_for_us else as_context

    async def add(
        self,
        chat: Envelope,
        decision: Admission,
        *,
        is_busy: bool,
        position: Position | None = None,
        age_seconds: float = 0.0,
        is_past: bool = False,
    ) -> Outcome:
        """Queue, hold, keep or refuse a chat, as decided.

        `position` is its place in the space. `age_seconds` is the time since the gateway accepted it. `is_past`: it was
        sent before this process joined.
        """
        if decision.what == "ignored":
            return "ignored"
        if decision.what == "refused":
            # The position moves on: after a restart, the chat would come again although its sender has the refusal.
            # Store the follower with the refusal, because a refused chat is not stored anywhere else.
            followers = [ReceiptFollower(MessageKey.of(chat), chat.sender, "")] if asks_for_receipts(chat) else ()
            ending = _ended(chat, "refused", decision.refusal.problem if decision.refusal else None)
            await self._change(position=position, endings=[ending], followers=followers)
            return "refused"
        stored = self._stored(chat, position, age_seconds, is_past=is_past)
        if not decision.is_certain:
            self._undecided.add(stored.number)
        if decision.what != "answer":
            return await self._put_aside(stored, decision.what, position)
        await self._change(stored, position=position)
        has_to_wait = is_busy or bool(self.in_state(*QUEUED))
        self._chats[stored.number] = stored
        self._arrived.set()
        return "queued" if decision.is_certain and has_to_wait else "next"

    async def _put_aside(self, chat: StoredChat, verdict: Verdict, position: Position | None) -> Outcome:
        """Keep a chat that is not answered now: as context, until it fits, or until a person speaks."""
        if verdict == "no_room":
            await self._put(chat, "no_room", position)
            return "no_room"
        await self._put(chat, LOOP_STOPPED if verdict == "loop_stopped" else "overheard", position)
        if verdict == "loop_stopped":
            of_sender = [one for one in self.in_state(LOOP_STOPPED) if one.envelope.sender == chat.envelope.sender]
            for oldest in of_sender[:-MAX_STOPPED_CHATS]:
                await self._put(oldest, "overheard")
        return "kept"

    def _limit_reached(self, sender: str, verdict: Verdict) -> str | None:
        """Return why this sender may queue no further chat; None if it may."""
        if verdict not in ("answer", "no_room"):
            return None
        waiting = self.in_state(*QUEUED) if verdict == "answer" else self.in_state("no_room")
        weights = Counter[str]()
        for chat in waiting:
            weights[chat.envelope.sender] += chat.weight
        if weights[sender] < max(1, min(MAX_QUEUED_CHATS, MAX_ALL_CHATS // max(1, len(weights)))):
            return None
        count = sum(chat.envelope.sender == sender for chat in waiting)
        return f"{count} of your chats are {'waiting' if verdict == 'answer' else 'held'} already"

    def _stored(self, chat: Envelope, position: Position | None, age_seconds: float, *, is_past: bool) -> StoredChat:
        """Return a chat with the next number."""
        place, weight = None if position is None else str(position), weight_of(len(chat.encode()))
        stored = StoredChat(self._next_number, chat, position=place, sent_at=time.time() - age_seconds, weight=weight)
        self._next_number += 1
        if is_past:  # messages from before this process's join arrive first
            self._first_live = self._next_number
        return stored

    async def cancel(self, cancel: Envelope, *, position: Position | None = None) -> tuple[MessageKey, ...]:
        """Remove the waiting chats that a `chat/cancel` refers to, and mark the one being answered as cancelled.

        A chat that joined a turn is removed too; the turn continues without it. A turn whose answer is known is over,
        and its answer is sent. Returns the chats that ended.
        """
        joined = () if self._is_answered else self.joined
        waiting = (*self.in_state("queued", LOOP_STOPPED, "no_room", "answering"), *joined)
        meant = [chat for chat in waiting if is_about(cancel, chat.envelope)]
        cancelled = [self._as_cancelled(chat) for chat in meant if _was_begun(chat)]
        gone = [chat for chat in meant if not _was_begun(chat)]
        self._drop(gone)
        if self.current is not None and is_about(cancel, self.current.envelope):
            cancelled += self._cancelled_turn()
        endings = [_ended(chat.envelope, "cancelled", "by its sender") for chat in gone]
        if meant or cancelled:
            await self._change(*cancelled, removed=gone, position=position, endings=endings)
        return tuple(ending.key for ending in endings)

    def _as_cancelled(self, chat: StoredChat) -> StoredChat:
        self._chats[chat.number] = cancelled = replace(chat, state="cancelled")
        return cancelled

    def _drop(self, chats: Collection[StoredChat]) -> None:
        """Take chats out of the queue or of the turn that they joined. Chats that had joined them stay queued."""
        self.joined = tuple(chat for chat in self.joined if chat not in chats)
        gone = {chat.number for chat in chats}
        self._chats = {
            number: fresh(chat) if chat.joined in gone else chat
            for number, chat in self._chats.items()
            if number not in gone
        }

    async def release(self, senders: Collection[str]) -> None:
        """Queue the chats of these senders in a stopped loop that ask something; keep the others as context."""
        for chat in self.in_state(LOOP_STOPPED):
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
        if self._chats.get(chat.number) is chat:  # otherwise it was cancelled in the meantime
            await self._put(replace(chat, form=form, chosen_by=chosen_by), "queued", position)

    async def discard(self, chat: StoredChat, position: Position | None = None) -> None:
        """Remove a chat that is held because it does not fit; `position` as in `make_room_for`."""
        if self._chats.get(chat.number) is chat:
            del self._chats[chat.number]
            ending = _ended(chat.envelope, "cancelled", "it did not fit, and its sender cancelled it")
            await self._change(removed=(chat,), position=position, endings=[ending])

    async def reached(self, position: Position | None) -> None:
        """Note that everything up to this position is handled. It is stored now and then, and with each chat."""
        stored = self._stored_position
        if position is None or position == stored:
            return
        if stored is None or stored.epoch != position.epoch or position.sequence - stored.sequence >= POSITION_EVERY:
            await self._change(position=position)

    async def forget_answered(self, answer: Envelope) -> None:
        """Remove a chat answered by an earlier process with this envelope, but not recorded by it."""
        for chat in self.in_state(*QUEUED):
            if chat.joined is None and self.id_for(chat, "answer") == answer.id:
                chats = (self._chats.pop(chat.number), *self._take_joined(chat))
                await self._change(removed=chats, endings=self._answered(chat, chats[1:]))

    # -- answering ---------------------------------------------------------------------------------------

    async def next(self, until_active: Callable[[], Awaitable[None]]) -> StoredChat:
        """Wait until the agent is active and a chat for it arrives, and return it. End it with `finish`."""
        while True:
            while not self.in_state(*QUEUED):
                self._arrived = anyio.Event()
                await self._arrived.wait()
            await until_active()
            # The chat stays in the queue: the filter may ask a model, and a cancellation must find the chat.
            first = partial(_place, self._turns, self._ranks())
            chat = min((one for one in self.in_state(*QUEUED) if one.joined is None), key=first, default=None)
            if chat is None:
                continue
            is_certain = chat.state != "queued" or chat.number not in self._undecided
            is_for_us = is_certain or await self.address_filter.is_for_us(chat.envelope)
            if self._chats.get(chat.number) is not chat:
                continue  # cancelled in the meantime
            self._note_served(chat)
            if is_for_us:
                self.current, self.joined = chat, self._take_joined(chat)
                del self._chats[chat.number]
                return chat
            await self._put(chat, "overheard")

    def _note_served(self, chat: StoredChat) -> None:
        for owner in _owners(chat):
            self._turn += 1
            self._turns[owner] = self._turn
        self._undecided.discard(chat.number)

    def _take_joined(self, question: StoredChat) -> tuple[StoredChat, ...]:
        """Remove and return the chats that already share the turn of this question."""
        joined = tuple(one for one in self._chats.values() if one.joined == question.number)
        self._chats = {number: one for number, one in self._chats.items() if one.joined != question.number}
        return joined

    async def update(self, chat: StoredChat) -> StoredChat:
        """Store the progress of the chat being answered. Returns it; a cancelled chat stays cancelled.

        Chats that joined its turn have the same progress.
        """
        if self.current is not None and self.current.state == "cancelled":
            chat = replace(chat, state="cancelled", answer=None, refusal=None)
        self.current = chat
        self.joined = tuple(begun(one, chat) for one in self.joined)
        await self._change(chat, *self.joined)
        return chat

    async def mark_cancelled(self, position: Position | None = None, by: str | None = None) -> None:
        """Record that the chat being answered was cancelled, so that a restarted process does not answer it.

        With `by`, the whole turn was cancelled: a sender in it cancels its own chats, another participant all.
        """
        if self.current is not None:
            await self._change(*self._cancelled_turn(by), position=position)

    def _cancelled_turn(self, by: str | None = None) -> tuple[StoredChat, ...]:
        """Mark the running turn as cancelled; `by` as in `mark_cancelled`. Returns its chats, unless it has ended."""
        assert self.current is not None
        if self._is_answered:
            return ()
        self.current, self.joined = cancelled_turn(self.current, self.joined, by)
        return self.answering

    async def finish(self) -> tuple[MessageKey, ...]:
        """End the turn. Returns the chats that ended with it.

        If the chat was cancelled or failed before it began, the other chats of its turn are next. Does nothing for a
        chat that was put back or kept as context.
        """
        if self.current is None:
            return ()
        ended, joined = self.current, self.joined
        self.current, self.joined = None, ()
        rest = to_answer_next(ended, joined)
        over = [one for one in (ended, *joined) if one not in rest]
        endings = [_ended(one.envelope, "cancelled") for one in over]
        if ended.state == "answered":
            endings = self._answered(ended, joined)
        kept = continued(rest)
        self._chats = {**{one.number: one for one in kept}, **self._chats}
        self._arrived.set()
        await self._change(*kept, removed=over, endings=endings)
        return tuple(one.key for one in endings)

    def put_back(self, chat: StoredChat) -> None:
        """Move the chats of a turn back to the head of the queue; `chat` is its question."""
        self._chats = {chat.number: chat, **{one.number: one for one in self.joined}, **self._chats}
        self.current, self.joined = None, ()
        self._arrived.set()

    # -- several chats in one turn -----------------------------------------------------------------------

    def to_join(self, mode: BetweenSteps) -> tuple[StoredChat, ...]:
        """Return the waiting chats that may join the running turn before its next step."""
        return () if self.current is None else entering(self._decided(), self.current, mode)

    def to_answer_together(self) -> tuple[StoredChat, ...]:
        """Return the waiting chats to answer in the turn that begins, if too many wait."""
        most, question = self.together, self.current
        if most is None or question is None or question.state != "queued" or len(waiting := self._decided()) < most:
            return ()
        ranks = ranks_of((question, *self.in_state("queued")), self._is_agent)
        turns = {owner[0]: turn for owner, turn in self._turns.items() if len(owner) == 1}
        return tuple(answered_together(waiting, question, ranks, turns)[: most - 1])

    def _decided(self) -> tuple[StoredChat, ...]:
        """Return the queued chats that the rules assign to the agent, without asking its model, in order."""
        return tuple(
            one
            for one in self.in_state("queued")
            if one.number not in self._undecided or self.address_filter.check_rules(one.envelope) is True
        )

    async def join(self, chats: Sequence[StoredChat], *, has_sections: bool = False) -> StoredChat | None:
        """Add waiting chats to the turn, and return its question. `has_sections`: the answer has a section for each
        chat.

        A turn that has begun stores them before they enter its context.
        """
        question = self.current
        if question is None or question.state == "cancelled":
            return question
        if has_sections:
            mark = self.id_for(question, "sections")[:4]
            self.current = question = replace(question, section=f"{mark}-1")
        mark, count = question.section.partition("-")[0], self._sections_made(question)
        for one in chats:
            if self._chats.get(one.number) is one:  # otherwise it was cancelled in the meantime
                count += 1
                del self._chats[one.number]
                self._note_served(one)
                section = f"{mark}-{count}" if mark else ""
                self.joined += (begun(replace(one, joined=question.number, section=section), question),)
        if question.state == "answering":
            await self._change(*self.joined)
        return question

    def _sections_made(self, question: StoredChat) -> int:
        """Return the number of the newest section in this turn."""
        numbers = (one.section.partition("-")[2] for one in (question, *self.joined))
        return max(int(number or 0) for number in numbers)

    def _answered(self, question: StoredChat, joined: Sequence[StoredChat]) -> list[MessageEnding]:
        """Return how the chats of a turn ended; cancelled ones have no answer."""
        if question.refusal is not None:
            return [_ended(question.envelope, "refused", question.refusal.problem)]
        return [
            _ended(one.envelope, "answered", answer=self.id_for(reply.chats[0], "answer"))
            for reply in replies(question, joined)
            for one in reply.chats
        ]

    def take_overheard(self) -> Iterator[StoredChat]:
        """Remove and return the overheard chats, oldest first. They stay in the store."""
        while (chat := next(iter(self.in_state("overheard")), None)) is not None:
            self._leaving[chat.number] = self._chats.pop(chat.number)
            yield chat
            self._leaving.pop(chat.number, None)

    async def forget_overheard(self, chat: StoredChat) -> None:
        """Remove a chat returned by `take_overheard` from the store."""
        await self._change(removed=(chat,))

    async def remember(self, chat: StoredChat) -> None:
        """Keep a chat as context instead of answering it."""
        self.current = None
        await self._put(chat, "overheard")

    # -- ids ---------------------------------------------------------------------------------------------

    def id_for(self, chat: StoredChat, what: str) -> str:
        """Return the id of an envelope about a chat: `answer`, `reasoning`, `conclusion`, or `no room`.

        The id stays the same after a restart, so the gateway recognises a repetition. Each attempt has its own
        reasoning and conclusion.
        """
        asked, attempt = chat.envelope, f" {chat.attempts}" if what in ("reasoning", "conclusion") else ""
        # Some clients count their ids from 1 at every start, so an id alone does not identify a chat.
        place = chat.position or f"#{chat.number}"
        parts = (self._agent_id, asked.sender, asked.id, asked.ts, place, f"{what}{attempt}")
        return str(uuid5(_NAMESPACE, "\n".join(parts)))

    # -- storing -----------------------------------------------------------------------------------------

    async def _put(self, chat: StoredChat, state: ChatState, position: Position | None = None) -> None:
        """Append a chat to this state. Forgets the oldest overheard chats beyond the limit."""
        self._chats.pop(chat.number, None)
        self._chats[chat.number] = chat = replace(chat, state=state)
        if state == "overheard":
            self._undecided.discard(chat.number)
        overheard, forgotten = Shares[int](), list[StoredChat]()
        for one in self.in_state("overheard"):
            overheard.add(one.number, one.envelope.sender, one.weight)
        while (number := overheard.surplus(MAX_OVERHEARD_CHATS)) is not None:
            overheard.discard(number)
            forgotten.append(self._chats.pop(number))
        reason = f"more than {MAX_OVERHEARD_CHATS} messages waited as context"
        endings = [_ended(one.envelope, "refused", reason) for one in forgotten]
        await self._change(chat, removed=forgotten, position=position, endings=endings)
        if state == "queued":
            self._arrived.set()

    async def _change(
        self,
        *chats: StoredChat,
        removed: Sequence[StoredChat] = (),
        position: Position | str | None = None,
        endings: Sequence[MessageEnding] = (),
        followers: Sequence[ReceiptFollower] = (),
    ) -> None:
        """Store a change. If the store fails, the agent still answers, and only a restart loses the change."""
        old = self._stored_position
        # The position never moves back: a chat that waited for its classification is older than the newest one.
        if isinstance(position, Position) and old is not None and old.epoch == position.epoch:
            position = position if position.sequence > old.sequence else None
        receipts = ReceiptChange(endings=endings, followers=followers) if endings or followers else NO_RECEIPTS
        leaving = {chat.number: chat for chat in removed}
        self._undecided.difference_update(leaving)
        self._leaving |= leaving
        try:
            place = None if position is None else str(position)
            await self._store.change_inbox(InboxChange(chats, tuple(leaving), place, receipts))
        except StoreUnusable as error:
            logger.warning("inbox not stored: %s", error)
            return
        finally:
            self._leaving = {number: chat for number, chat in self._leaving.items() if number not in leaving}
        self._stored_position = position if isinstance(position, Position) else old


def _place(turns: Mapping[tuple[str, ...], int], ranks: Mapping[str, Rank], chat: StoredChat) -> tuple[int, ...]:
    """Return the sort key of a queued chat: begun chats first, then the sender's rank, then the last turns of sender
    and client.
    """
    if chat.state != "queued":
        return (-1,)
    return (*ranks.get(chat.envelope.sender, ()), *(turns.get(owner, 0) for owner in _owners(chat)))


def _was_begun(chat: StoredChat) -> bool:
    """Return whether an earlier process began the turn of this waiting chat."""
    return chat.state == "answering" and chat.joined is None


def _ended(chat: Envelope, what: Ending, reason: str | None = None, answer: str | None = None) -> MessageEnding:
    session = chat.body.get("session")
    key = MessageKey.of(chat)
    return MessageEnding(key, what, timestamp(), session if isinstance(session, str) else None, answer, reason)


def _owners(chat: StoredChat) -> tuple[tuple[str, ...], ...]:
    """Return the owners that take turns: the sender, and the client that its session names."""
    asked = chat.envelope
    return (asked.sender,), (asked.sender, client_of(asked.body.get("session")))


def asks_for_receipts(chat: Envelope) -> bool:
    """Return whether the sender of a chat asks for receipts."""
    return chat.body.get("receipts") is True


def is_about(cancel: Envelope, chat: Envelope) -> bool:
    """Return whether a `chat/cancel` cancels this chat; only the sender of the chat can."""
    return cancel.refers_to(chat.id) and chat.sender == cancel.sender
