"""Whether a chat that arrives fits into an agent's context. Chats that do not fit are held, and their senders notified.

Owns the figures of the answer, from the ledger and everything that is queued; when a held chat is delivered (its sender
chooses how, or there is room); and what senders receive. Makes no room: the policy compacts before a request. Checks
only chats for the agent's own conversation; an unknown figure holds nothing.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final, Literal

import anyio
from mew_protocol import kinds
from mew_protocol.context_report import QueuedMessages, Waiting
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.chat import MAIN_SESSION, Acknowledge
from mew_protocol.payloads.fit import DELIVERIES, WOULD_OVERFLOW, Delivery, Fit, WouldFit, decided
from mew_protocol.status_word import status_word

from mew_agent.agent.inbox import Inbox
from mew_agent.agent.recall import text_as_read
from mew_agent.compaction.planner import summary_budget_tokens
from mew_agent.context.policy.rules import CompactRule
from mew_agent.context.store import StoredChat
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.events import ConversationEvent, ItemAdded, ResultCut, StatusChanged
from mew_agent.participant.participant import Participant
from mew_agent.tokens.projection import Calibration
from mew_agent.tokens.sizes import Size, Sizes

NOTICE: Final = (
    "Your message does not fit into my context, so I hold it: {fit}. Reply with one word: `reference` (I read parts of"
    " it with a tool), `digest` (I read its most important sentences), `anyway` (I try to read all of it), or `cancel`."
)
CUT: Final = "{tool}: about {tokens:,} tokens (projected) of its result stay outside the context"
HELD: Final = "a message of {tokens:,} tokens ({basis}) has no room; its sender decides, or a compaction frees enough"


class QueuedSizes:
    """The sizes of the chats that wait outside a context: each is measured once, as long as it waits."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._known: dict[tuple[int, str], Size] = {}

    async def of(self, chat: StoredChat) -> Size:
        """Return the size of a chat as the model reads it."""
        key = chat.number, chat.form
        if (size := self._known.get(key)) is None:
            size = self._known[key] = await self._sizes.measure(text_as_read(chat))
        return size

    async def count(
        self, unread: Iterable[StoredChat], calibration: Calibration, waiting: Iterable[StoredChat] = ()
    ) -> QueuedMessages:
        """Count the unread chats. Forgets the sizes of all but these and the chats that are held back."""
        sizes = {(chat.number, chat.form): await self.of(chat) for chat in unread}
        kept = {(chat.number, chat.form) for chat in waiting}
        self._known = {key: size for key, size in self._known.items() if key in sizes or key in kept}
        tokens = sum(tokens_of(size, calibration) for size in sizes.values())
        return QueuedMessages(messages=len(sizes), tokens=tokens, basis=basis_of(tuple(sizes.values()), calibration))


def tokens_of(size: Size, calibration: Calibration) -> int:
    """Return what a chat of this size adds to a context, in tokens."""
    return calibration.wrap(size.tokens(calibration))


def basis_of(sizes: Sequence[Size], calibration: Calibration) -> Literal["tokenizer", "projected", "heuristic"]:
    """Return how the tokens of chats are known."""
    if sizes and calibration.counts_fit and all(size.counted_tokens is not None for size in sizes):
        return "tokenizer"
    return "projected" if calibration.weights is not None else "heuristic"


class HeadroomCheck:
    """The check of one agent."""

    def __init__(self, me: Participant, conversation: Conversation, inbox: Inbox) -> None:
        self._me, self._conversation, self._inbox = me, conversation, inbox
        self.mode: WouldFit = "warn"
        """What to do with a chat that does not fit; the space says it."""
        self.waits: tuple[Waiting, ...] = ()
        """The held chats as a report shows them."""
        self._sizes = QueuedSizes(conversation.state.sizes)
        self._asked: set[int] = set()
        self._lock = anyio.Lock()
        conversation.events.subscribe(self._on_event)

    # -- what arrives ------------------------------------------------------------------------------------

    async def overflow_of(self, chat: Envelope, *, is_busy: bool) -> Fit | None:
        """Return the figures of a chat that would overflow; None if it fits, or if that is unknown or not checked.

        The chat is for the agent. An idle agent compacts before it answers: only what would not fit then overflows.
        """
        if self.mode == "off" or chat.body.get("session") not in (None, MAIN_SESSION):
            return None
        size = await self._conversation.state.sizes.measure(str(chat.body.get("text")))
        fit = await self._fit_of(size)
        if fit.fits is not False or (not is_busy and not len(self._inbox) and fit.fits_after_compaction):
            return None
        return fit

    async def _fit_of(self, size: Size) -> Fit:
        """Return whether a text of this size fits together with everything that is queued, as projected now."""
        await self.count_queued()
        if not self._conversation.calls.lock.locked():
            self._conversation.calls.describe_prefix()
        tracker = self._conversation.tracker
        calibration, queued, window_tokens = tracker.ledger.calibration, tracker.queued, tracker.shown_limit_tokens
        fit = decided(
            Fit(
                fits=None,
                tokens=tokens_of(size, calibration),
                tokens_basis=basis_of((size,), calibration),
                context_tokens=tracker.next_prompt.tokens,
                context_basis=tracker.next_prompt.basis,
                queued_tokens=0 if queued is None else queued.tokens,
                queued_messages=0 if queued is None else queued.messages,
                max_tokens=window_tokens,
                max_tokens_basis=None if window_tokens is None else tracker.window.basis,
                as_of=tracker.measurement.measured_at,
            )
        )
        if fit.fits is not False or window_tokens is None:
            return fit
        rules = tracker.policy.rule_index.interventions.get("pre_request", ())
        if tracker.is_stalled or not any(isinstance(rule, CompactRule) for rule in rules):
            return fit.model_copy(update={"fits_after_compaction": False})
        # What a compaction cannot remove: the prefix, pins, and a summary of its largest size.
        parts = tracker.ledger.parts
        summary = max(parts.summary, summary_budget_tokens(window_tokens, window_tokens))
        fixed = parts.prefix + parts.pins + summary + (fit.reserve_tokens or 0)
        after = fixed + fit.tokens + calibration.spread(size.units) <= window_tokens
        return fit.model_copy(update={"fits_after_compaction": after})

    async def count_queued(self) -> None:
        """Count what waits outside the context, for this agent's reports."""
        unread = [chat for chat in self._inbox.unread if not self._is_entered(chat)]
        queued = await self._sizes.count(unread, self._calibration, self._inbox.without_room)
        self._conversation.state.set_surroundings(queued=queued)

    def _is_entered(self, chat: StoredChat) -> bool:
        """Return whether the chat that is being answered is in the history already."""
        if chat.first_seq < 0:
            return False
        items = reversed(self._conversation.history.items)
        recent = takewhile(lambda item: item.seq >= chat.first_seq, items)
        return any(item.envelope_id == chat.envelope.id for item in recent)

    @property
    def _calibration(self) -> Calibration:
        return self._conversation.tracker.ledger.calibration

    # -- what senders receive ----------------------------------------------------------------------------

    async def warn(self, chat: Envelope, fit: Fit, *, is_held: bool) -> None:
        """Notify the sender that a chat does not fit now, and of its choices if the chat is held."""
        if is_held:
            await self.show_held()
        if self._me.may_send(kinds.CHAT_ACKNOWLEDGE):
            payload = Acknowledge(status=WOULD_OVERFLOW, fit=fit, held=is_held, choices=DELIVERIES if is_held else None)
            await self._me.send(kinds.CHAT_ACKNOWLEDGE, payload, to=(chat.sender,), correlation_id=(chat.id,))
        if is_held:
            await self.release()

    async def _ask_sender(self, held: StoredChat, fit: Fit) -> None:
        """Ask in words what to do with a chat that no compaction makes room for, so that any client can answer."""
        payload = {
            "text": NOTICE.format(fit=fit),
            "needs_reply": False,
            "would_overflow": fit.model_dump(mode="json", exclude_none=True),
        }
        chat = held.envelope
        # Its id is the same after a restart, so that the gateway drops a repetition.
        name = self._inbox.id_for(held, "no room")
        await self._me.messenger.send(kinds.CHAT, payload, to=chat.sender, correlation_id=(chat.id,), id=name)

    # -- held chats --------------------------------------------------------------------------------------

    async def read_choice(self, chat: Envelope) -> bool:
        """Deliver the held chats of a sender as this chat of its says. Returns whether the chat is such a choice."""
        how = delivery_in(chat)
        held = [one for one in self._inbox.without_room if one.envelope.sender == chat.sender]
        if how is None or not held or not chat.is_for(self._me.id):
            return how is not None and "deliver" in chat.body  # too late, and no question either
        position = self._me.session.client.arrived.position
        for one in [one for one in held if chat.refers_to(one.envelope.id)] or held:
            if how == "cancel":
                await self._inbox.discard(one, position)
            else:
                await self._inbox.make_room_for(one, "whole" if how == "anyway" else how, chat.id, position)
        await self.show_held()
        return True

    async def release(self) -> None:
        """Deliver the held chats that fit now, and those for which the idle agent compacts; oldest first."""
        if not self._inbox.without_room:
            if self.waits:
                await self.show_held()
            return
        async with self._lock:
            for held in self._inbox.without_room:
                fit = await self._fit_of(await self._sizes.of(held))
                is_free = not self._inbox.is_answering and not len(self._inbox)
                if self.mode != "hold" or fit.fits is not False or (is_free and fit.fits_after_compaction):
                    await self._inbox.make_room_for(held)
                elif not fit.fits_after_compaction and held.number not in self._asked:
                    self._asked.add(held.number)
                    self._me.start_soon(self._ask_sender, held, fit)
            await self.show_held()

    async def show_held(self) -> None:
        """Bring the waits up to date with the held chats."""
        shown = {wait.message: wait for wait in self.waits}
        waits = []
        for held in self._inbox.without_room:
            chat = held.envelope
            if chat.id not in shown:
                fit = await self._fit_of(await self._sizes.of(held))
                what = HELD.format(tokens=fit.tokens, basis=fit.tokens_basis.replace("_", " "))
                shown[chat.id] = Waiting(kind="room", what=what, since=chat.ts, peer=chat.sender, message=chat.id)
            waits.append(shown[chat.id])
        if tuple(waits) != self.waits:
            self.waits = tuple(waits)
            self._me.waits_changed()

    async def _on_event(self, event: ConversationEvent) -> None:
        if isinstance(event, ItemAdded):
            await self.count_queued()  # what entered the context no longer waits
        elif isinstance(event, ResultCut) and self.mode != "off":
            word = status_word(WOULD_OVERFLOW, CUT.format(tool=event.tool, tokens=event.omitted_tokens))
            self._me.start_soon(self._conversation.emit_status, word)
        elif isinstance(event, StatusChanged) and self._inbox.without_room and self._me.is_joined:
            self._me.start_soon(self.release)


def delivery_in(chat: Envelope) -> Delivery | None:
    """Return how a chat wants an earlier one delivered: its `deliver`, or a text that is one of these words alone."""
    word = chat.body.get("deliver") or str(chat.body.get("text") or "")[:20].strip(" \n`'\".!").lower()
    return next((one for one in DELIVERIES if one == word), None)
