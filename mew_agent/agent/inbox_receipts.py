"""The read receipts of an agent. Combines facts from inbox, conversation and store, and stores the followers of
messages.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import uuid4

from mew_protocol.envelope import Envelope
from mew_protocol.payloads.read_receipts import (
    InContext,
    PromptCall,
    ReadReceipt,
    ReceiptBasis,
    ReceiptEvent,
)

from mew_agent.agent.inbox import Inbox, asks_for_receipts
from mew_agent.agent.loop_guard import LOOP_STOPPED
from mew_agent.context.message_facts import MessageKey, MessageRecord, ReceiptChange, ReceiptFollower
from mew_agent.context.sqlite_store import Store
from mew_agent.context.store import InboxChange, StoredChat, StoreUnusable
from mew_agent.conversation.message_forms import NOT_HELD, Holding, ReadRecord
from mew_agent.participant.messenger import Messenger, timestamp
from mew_agent.participant.receipts import ReceiptBook, ReceiptSource
from mew_agent.settings import BetweenSteps

logger = logging.getLogger("mew_agent.agent.inbox_receipts")

NEVER_ARRIVED: Final = "it never arrived, was answered without a model, or is older than the receipts that are kept"

WAITS: Final = {
    LOOP_STOPPED: "it belongs to a loop of agents and waits for a person or a program",
    "no_room": "it does not fit the context and waits for its sender's choice",
    "overheard": "it needs no answer and enters with the next turn",
}
"""Why a chat waits, by its state in the inbox."""

AFTER_TURN: Final = "the agent reads no message during a turn"
"""Why a chat waits at an engine that cannot let it join the turn."""

LEFT_DURING_TURN: Final = "it left the context during its turn, whose next call holds it again"

Hold = Callable[[ReadRecord, MessageKey, str | None], Awaitable[Holding]]
"""Returns the form of a message in the context, from its record, its key and its session; `Engine.holding`."""


class AgentReceipts(ReceiptBook):
    """The receipts of one agent."""

    def __init__(
        self,
        messenger: Messenger,
        inbox: Inbox,
        store: Store,
        hold: Hold,
        basis: ReceiptBasis,
        between_steps: BetweenSteps | None,
    ) -> None:
        """`between_steps` None: no message can join a running turn."""
        self._messenger, self.source = messenger, ReceiptSource(messenger, self)
        self._inbox, self._store, self._hold, self._basis = inbox, store, hold, basis
        self._between_steps = between_steps
        self._prompts = 0
        """The number of prompts of an engine that keeps its history elsewhere."""

    async def load(self) -> None:
        """Load the followers of messages. Senders of unfinished chats may know less than the store."""
        try:
            stored, self._prompts = await self._store.followers(), await self._store.prompts_read()
        except StoreUnusable as error:
            logger.warning("followers of receipts not loaded: %s", error)
            return
        for one in stored:
            self.source.followers.put(one)
        for chat in self._inbox.unfinished:  # the earlier process may have ended before it stored the followers
            envelope = chat.envelope
            if (
                asks_for_receipts(envelope)
                and self.source.followers.get(MessageKey.of(envelope), envelope.sender) is None
            ):
                await self.source.keep_told(MessageKey.of(envelope), envelope.sender, "")
        self.source.is_behind = bool(self.source.followers.all)

    async def receipt(self, key: MessageKey) -> ReadReceipt:
        """See `ReceiptBook`."""
        known: dict[str, Any] = {
            "id": key.id,
            "sender": key.sender,
            "participant": self._messenger.id,
            "basis": self._basis,
        }
        chat = self._inbox.find(key)
        try:
            record = await self._record(key, chat)
            session = None if chat is None else chat.envelope.body.get("session")
            if record.ending is not None:
                session = record.ending.session
            read = partial(self._record, key, chat)
            holding = await self._hold(read, key, session if isinstance(session, str) else None)
        except StoreUnusable as error:
            return ReadReceipt(state="unknown", in_context="unknown", reason=f"not readable: {error}", **known)
        if chat is not None and chat.state not in ("answering", "answered", "cancelled"):
            holding = NOT_HELD  # an earlier message had this id
        elif self._returns(chat) and holding.in_context in ("recoverable", "gone"):
            holding = replace(holding, in_context="unknown", reason=LEFT_DURING_TURN)
        place = None if chat is None else self._inbox.place_of(chat)
        found = _receipt(chat, record, holding, {**known, "place": place})
        is_plain = chat is not None and chat.state == "queued" and found.reason is None
        waits = self.after_turn(chat.envelope) if chat is not None and is_plain else None
        return found if waits is None else found.model_copy(update={"reason": waits})

    def _returns(self, chat: StoredChat | None) -> bool:
        """Return True for a chat of the running turn, whose every prompt contains it."""
        is_running = chat is not None and chat in self._inbox.answering and chat.state == "answering"
        return is_running and self._basis == "prompt"

    async def _record(self, key: MessageKey, chat: StoredChat | None) -> MessageRecord:
        return _present(await self._store.message(key), chat)

    def after_turn(self, chat: Envelope) -> str | None:
        """Return why an urgent chat, or one of the asker, has to wait for the end of the turn.

        None if it need not.
        """
        running, is_urgent = self._inbox.current, chat.body.get("urgent") is True
        is_askers = running is not None and running.envelope.sender == chat.sender
        if running is None or not (is_urgent or is_askers):
            return None
        if self._between_steps is None:
            return AFTER_TURN
        is_let_in = self._between_steps == "all" or (is_urgent and self._between_steps == "urgent")
        if is_let_in or (is_askers and self._between_steps != "never"):
            return None
        return f"it is read after the running turn (between_steps: {self._between_steps})"

    async def sender_of(self, message_id: str) -> str | None:
        """See `ReceiptBook`."""
        waiting = self._inbox.senders_of(message_id)
        try:
            return next(iter((*waiting, *await self._store.senders_of(message_id))), None)
        except StoreUnusable:
            return next(iter(waiting), None)

    # -- changes -----------------------------------------------------------------------------------------

    async def arrived(self, chat: Envelope, *, is_refused: bool) -> None:
        """Follow a chat for its sender. For a refused chat, the store does so already."""
        if is_refused:
            self.source.followers.put(ReceiptFollower(MessageKey.of(chat), chat.sender, ""))
        else:
            await self.source.keep_told(MessageKey.of(chat), chat.sender, "")
            self.changed(MessageKey.of(chat))

    async def prompt_read(self, messages: Sequence[Envelope]) -> None:
        """Note that an engine with its own history sent a prompt with these messages."""
        self._prompts += 1
        call = PromptCall(number=self._prompts, id=str(uuid4()), at=timestamp())
        read = [(MessageKey.of(one), call) for one in messages]
        await self._store_change(ReceiptChange(read=read))
        self.changed("read")

    def context_changed(self, form: InContext) -> None:
        """See `ReceiptBook`."""
        self._messenger.session.start_soon(self._store_form, form)

    async def _store_form(self, form: InContext) -> None:
        await self._store_change(ReceiptChange(forms=(form, timestamp())))
        self.changed("context")

    async def keep(self, news: ReceiptFollower) -> None:
        """See `ReceiptBook`."""
        await self._store_change(ReceiptChange(followers=(news,)))

    async def _store_change(self, change: ReceiptChange) -> None:
        try:
            await self._store.change_inbox(InboxChange(receipts=change))
        except StoreUnusable as error:
            logger.warning("receipts not stored: %s", error)


def _present(record: MessageRecord, chat: StoredChat | None) -> MessageRecord:
    """Return the record of an unfinished chat, without an earlier message of the same id."""
    if chat is None:
        return record
    entries = tuple(one for one in record.entries if one.seq is None or one.seq >= chat.first_seq >= 0)
    return record._replace(entries=entries, ending=None)


def _receipt(chat: StoredChat | None, record: MessageRecord, holding: Holding, known: dict[str, Any]) -> ReadReceipt:
    """Return the receipt of a message that is unfinished, ended, only in the history, or unknown."""
    ending = record.ending
    events = [] if chat is None else [ReceiptEvent(what="queued", at=chat.queued_at)]
    events += holding.events
    if ending is not None:
        events.append(ReceiptEvent(what=ending.what, at=ending.at, reason=ending.reason))
        events.sort(key=lambda one: one.at or "")
    values = {
        "in_context": holding.in_context,
        "call": holding.call,
        "summary": holding.summary,
        "compaction": holding.compaction,
        "reason": holding.reason,
    }
    state = _state_of(chat, record, holding)
    return ReadReceipt.model_validate({**known, **values, **state, "history": tuple(events)})


def _state_of(chat: StoredChat | None, record: MessageRecord, holding: Holding) -> dict[str, Any]:
    """Return the `state` of a receipt, and the keys that depend on it."""
    ending = record.ending
    if ending is not None:
        reason = ending.reason or holding.reason
        return {"state": ending.what, "at": ending.at, "answer": ending.answer, "reason": reason}
    if chat is not None and chat.refusal is not None and chat.state == "answered":
        return {"state": "refused", "reason": chat.refusal.problem}
    if chat is not None and chat.state in ("answered", "cancelled"):
        return {"state": chat.state}
    if holding.call is not None:
        return {"state": "in_prompt", "at": holding.call.at}
    if chat is not None:
        return {"state": "queued", "at": chat.queued_at, "reason": holding.reason or WAITS.get(chat.state)}
    if record.entries:
        return {"state": "queued"}
    return {"state": "unknown", "in_context": "unknown", "reason": NEVER_ARRIVED}
