"""Checks whether arriving chats fit into an agent's context. Holds chats that do not fit, and notifies their senders.

Owns the computed figures, the release of held chats (when there is room, or as the sender chooses), and the notices to
senders. Makes no room: the policy compacts before a request. Checks only chats for the agent's own conversation. Holds
no chat because of an unknown figure.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import anyio
from mew_protocol import kinds
from mew_protocol.context_report import QueuedMessages, Waiting
from mew_protocol.envelope import Envelope, wire_time
from mew_protocol.json_values import text_at
from mew_protocol.payloads.chat import MAIN_SESSION, Acknowledge
from mew_protocol.payloads.participant import FitQuestion
from mew_protocol.payloads.text_fit import DELIVERIES, WOULD_OVERFLOW, Delivery, Fit, WouldFit

from mew_agent.agent.engine import Engine
from mew_agent.agent.inbox import QUEUED, Inbox
from mew_agent.agent.recall import READ_CHARS
from mew_agent.context.message_facts import MessageKey
from mew_agent.context.store import ChatRefusal, StoredChat
from mew_agent.participant.participant import Participant
from mew_agent.tokens.projection import NO_UNITS, Units
from mew_agent.tokens.sizes import GivenSize, Size, basis_of

NOTICE: Final = "Your message does not fit into my context, so I hold it: {fit}. Reply with one word: {choices}."
CHOICES: Final[Mapping[Delivery, str]] = {
    "reference": "`reference` (I read parts of it with a tool)",
    "digest": "`digest` (I read its most important sentences)",
    "anyway": "`anyway` (I try to read all of it)",
    "cancel": "`cancel`",
}
TOO_LARGE: Final = (
    "it can never fit into my context: {fit.size}, and at most ~{fit.largest_tokens:,} of the window of"
    " {fit.max_tokens:,} fit, even after a compaction. Send it in parts of fewer tokens, or name a file that I can read"
    " in parts"
)
HELD: Final = "a message of {fit.size} has no room; its sender decides, or a compaction frees enough"


class HeadroomCheck:
    """Checks the chats of one agent."""

    def __init__(self, me: Participant, engine: Engine, inbox: Inbox) -> None:
        self._me, self._engine, self._inbox = me, engine, inbox
        self.mode: WouldFit = "warn"
        """Action for a chat that does not fit: a setting of the space."""
        self.waits: tuple[Waiting, ...] = ()
        """The held chats as a report shows them."""
        self._sizes: dict[tuple[int, str], Size] = {}
        """The sizes of the chats outside the context: each is measured once, as long as it waits."""
        self._asked: set[int] = set()
        self._lock = anyio.Lock()

    # -- what arrives ------------------------------------------------------------------------------------

    async def overflow_of(self, chat: Envelope, *, is_busy: bool) -> Fit | None:
        """Return the figures of a chat that is too large for the context; None if it fits or is not checked.

        The chat is for the agent. An idle agent compacts first, so it holds no chat that fits after a compaction.
        """
        if self.mode == "off" or chat.body.get("session") not in (None, MAIN_SESSION):
            return None
        size = await self._engine.sizes.measure(text_at(chat.body, "text"))
        await self.count_queued()
        if self._engine.has_room(size):
            return None
        fit = self._engine.fit(size)
        if fit.can_never_fit:
            return fit
        is_free = not is_busy and not self._inbox.in_state(*QUEUED)
        is_held_for_nothing = self.mode == "hold" and is_free and fit.fits_after_compaction
        return None if fit.fits is not False or is_held_for_nothing else fit

    def refusal(self, fit: Fit) -> ChatRefusal | None:
        """Return why a chat with these figures is refused: it can never fit, and its sender has no choice."""
        is_refused = self.mode == "warn" and fit.can_never_fit
        return ChatRefusal(too_large_text(fit), WOULD_OVERFLOW, fit) if is_refused else None

    async def fit_of(self, question: FitQuestion) -> Fit | None:
        """Return the figures of an unsent text; None if its size cannot be read."""
        if question.tokens is not None:
            fit = await self._fit_of(GivenSize(NO_UNITS, question.tokens))
            return fit.model_copy(update={"tokens": question.tokens, "tokens_basis": "given"})
        if question.features is None or len(question.features) != len(NO_UNITS.counts):
            return None
        return await self._fit_of(Size(Units.from_counts(question.features)))

    async def _fit_of(self, size: Size) -> Fit:
        """Return whether a text of this size fits with all queued chats, by the current projection."""
        await self.count_queued()
        return self._engine.fit(size)

    async def fitting(self, chats: Sequence[StoredChat]) -> Sequence[StoredChat]:
        """Return the first of these waiting chats that fit together without a compaction; all if unknown."""
        if not chats:
            return chats
        fit, calibration = self._engine.fit(await self._size_of(chats[0])), self._engine.calibration
        if fit.max_tokens is None or fit.context_tokens is None:
            return chats
        fitting = list[StoredChat]()
        room = fit.max_tokens - fit.context_tokens - (fit.reserve_tokens or 0)
        for one in chats:
            room -= calibration.wrap((await self._size_of(one)).tokens(calibration))
            if room < 0:
                break
            fitting.append(one)
        return fitting

    async def count_queued(self) -> None:
        """Count the chats outside the context, for this agent's reports."""
        inbox, calibration = self._inbox, self._engine.calibration
        entering = (*inbox.in_state("overheard", *QUEUED), *inbox.answering)
        unread = [chat for chat in entering if not self._engine.has_read(chat)]
        known, self._sizes = self._sizes, {}
        for chat in (*unread, *inbox.in_state("no_room")):
            if (size := known.get((chat.number, chat.form))) is not None:
                self._sizes[chat.number, chat.form] = size
        sizes = tuple([await self._size_of(chat) for chat in unread])
        asked = (chat.sent_at for chat in unread if chat.state != "overheard")  # the others need no answer
        oldest = min((at for at in asked if at is not None), default=None)
        self._engine.surroundings.queued = QueuedMessages(
            messages=len(sizes),
            tokens=sum(calibration.wrap(size.tokens(calibration)) for size in sizes),
            basis=basis_of(sizes, calibration),
            oldest_at=None if oldest is None else wire_time(oldest),
        )

    async def _size_of(self, chat: StoredChat) -> Size:
        """Return the size of a chat as the model will read it."""
        key = chat.number, chat.form
        if (size := self._sizes.get(key)) is None:
            text = text_at(chat.envelope.body, "text")[: READ_CHARS[chat.form]]
            size = self._sizes[key] = await self._engine.sizes.measure(text)
        return size

    # -- what senders receive ----------------------------------------------------------------------------

    async def warn(self, chat: Envelope, fit: Fit, *, is_held: bool) -> None:
        """Notify the sender that a chat does not fit now. List the choices if the chat is held."""
        if is_held:
            await self.show_held()
        if self._me.may_send(kinds.CHAT_ACKNOWLEDGE):
            payload = Acknowledge(
                status=WOULD_OVERFLOW,
                fit=fit,
                held=is_held,
                choices=tuple(self._engine.deliveries) if is_held else None,
            )
            await self._me.send(kinds.CHAT_ACKNOWLEDGE, payload, to=(chat.sender,), correlation_id=(chat.id,))
        if is_held:
            await self.release()

    async def _ask_sender(self, held: StoredChat, fit: Fit) -> None:
        """Ask the sender in a chat how to deliver a message that no compaction makes room for."""
        payload = {
            "text": NOTICE.format(fit=fit, choices=choices_text(self._engine.deliveries)),
            "needs_reply": False,
            "would_overflow": fit.model_dump(mode="json", exclude_none=True),
        }
        chat = held.envelope
        # The id is the same after a restart, so that the gateway drops a repetition.
        name = self._inbox.id_for(held, "no room")
        await self._me.messenger.send(kinds.CHAT, payload, to=chat.sender, correlation_id=(chat.id,), id=name)

    # -- held chats --------------------------------------------------------------------------------------

    async def read_choice(self, chat: Envelope) -> bool:
        """Read a chat as a choice for the sender's held chats, and deliver them. Returns False if it is no choice."""
        held = [one for one in self._inbox.in_state("no_room") if one.envelope.sender == chat.sender]
        if not held and "deliver" not in chat.body:
            return False
        how = delivery_in(chat)
        if how is None or not held or not chat.is_for(self._me.id):
            return how is not None and "deliver" in chat.body  # too late, and not a question either
        if how not in self._engine.deliveries:
            problem = f"'{how}' is not possible here; reply {choices_text(self._engine.deliveries)}"
            self._me.start_soon(self._me.messenger.refuse_chat, chat, problem)
            return True
        await self._deliver([one for one in held if chat.refers_to(one.envelope.id)] or held, how, chat)
        return True

    async def _deliver(self, held: Sequence[StoredChat], how: Delivery, choice: Envelope) -> None:
        """Deliver or discard held chats, as their sender chose in another chat."""
        position = self._me.session.client.arrived.position
        for one in held:
            if how == "cancel":
                await self._inbox.discard(one, position)
            else:
                await self._inbox.make_room_for(one, "whole" if how == "anyway" else how, choice.id, position)
        await self.show_held()

    async def release(self) -> None:
        """Deliver the held chats that fit now, oldest first; an idle agent compacts for them."""
        if not self._inbox.in_state("no_room"):
            if self.waits:
                await self.show_held()
            return
        async with self._lock:
            for held in self._inbox.in_state("no_room"):
                fit = await self._fit_of(await self._size_of(held))
                is_free = self._inbox.current is None and not self._inbox.in_state(*QUEUED)
                if self.mode != "hold" or fit.fits is not False or (is_free and fit.fits_after_compaction):
                    await self._inbox.make_room_for(held)
                elif not fit.fits_after_compaction and held.number not in self._asked:
                    self._asked.add(held.number)
                    self._me.start_soon(self._ask_sender, held, fit)
            await self.show_held()

    async def show_held(self) -> None:
        """Update the waits from the held chats."""
        shown = {(wait.peer, wait.message): wait for wait in self.waits}
        waits = []
        for held in self._inbox.in_state("no_room"):
            chat = held.envelope
            if (key := MessageKey.of(chat)) not in shown:
                fit = await self._fit_of(await self._size_of(held))
                what = HELD.format(fit=fit)
                shown[key] = Waiting(kind="room", what=what, since=chat.ts, peer=chat.sender, message=chat.id)
            waits.append(shown[key])
        if tuple(waits) != self.waits:
            self.waits = tuple(waits)
            self._me.hooks.waits_changed()

    def release_soon(self) -> None:
        """Deliver the held chats that fit, after a change of the figures."""
        if self._inbox.in_state("no_room") and self._me.is_joined:
            self._me.start_soon(self.release)


def too_large_text(fit: Fit) -> str:
    """Return why a chat with these figures is refused."""
    return TOO_LARGE.format(fit=fit)


def choices_text(deliveries: Sequence[Delivery]) -> str:
    """Return the choices of a sender as part of a sentence."""
    *first, last = (CHOICES[one] for one in deliveries)
    return f"{', '.join(first)}, or {last}"


def delivery_in(chat: Envelope) -> Delivery | None:
    """Return the delivery that a chat chooses for an earlier one: its `deliver`, or its text if that is a single
    keyword.
    """
    word = chat.body.get("deliver") or text_at(chat.body, "text")[:20].strip(" \n`'\".!").lower()
    return next((one for one in DELIVERIES if one == word), None)
