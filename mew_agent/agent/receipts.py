"""The receipts of an agent: where each message waits, which call read it, and who is told of changes.

Owns how inbox, conversation and store answer together, and the envelopes to followers: at most one for each change of a
message. Without followers nothing is sent, and nothing is looked up.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from mew_protocol import kinds
from mew_protocol.bounded_dict import BoundedDict
from mew_protocol.envelope import Envelope, wire_timestamp
from mew_protocol.payloads.chat import Acknowledge
from mew_protocol.payloads.receipts import (
    InContext,
    ReadReceipt,
    ReadReceipts,
    ReceiptBasis,
    ReceiptEvent,
    RequestReceipts,
)

from mew_agent.agent.inbox import Inbox
from mew_agent.context.receipts import Follow, MessageKey, MessageRecord, ReceiptChange
from mew_agent.context.sqlite_receipts import MAX_FOLLOWS
from mew_agent.context.store import InboxChange, Store, StoredChat, StoreUnusable
from mew_agent.conversation.events import HistoryChanged, PromptRead
from mew_agent.conversation.receipts import NOT_HELD, Holding
from mew_agent.errors import GatewayError, NotPermitted
from mew_agent.participant.messenger import Messenger
from mew_agent.participant.receipts import ReceiptSource

logger = logging.getLogger("mew_agent.agent.receipts")

MAX_TOOL_REQUESTS: Final = 1_000
"""How many answered requests to the agent's own tools are kept."""

NEVER_ARRIVED: Final = "it never arrived, or is older than the receipts that are kept"

WAITS: Final = {
    "held": "it belongs to a loop of agents and waits for a person or a program",
    "no_room": "it does not fit the context and waits for its sender's choice",
    "overheard": "it needs no answer and enters with the next turn",
}
"""Why a chat waits, by its state in the inbox."""

Hold = Callable[[MessageRecord, MessageKey, str | None], Awaitable[Holding]]
"""Returns what the context holds of a message, given its record, its key and its session; `Engine.holding`."""

Cause = Literal["read", "context"] | MessageKey
"""What changed: a call began, the context was cut or restored, or one message."""


class AgentReceipts(ReceiptSource):
    """Answers for one agent, and tells followers of changes."""

    def __init__(self, messenger: Messenger, inbox: Inbox, store: Store, hold: Hold, basis: ReceiptBasis) -> None:
        super().__init__(messenger.id)
        self._messenger, self._inbox, self._store, self._hold, self._basis = messenger, inbox, store, hold, basis
        self._follows: BoundedDict[tuple[MessageKey, str], str] = BoundedDict(MAX_FOLLOWS)
        """What each follower of a message was told last."""
        self._requests: BoundedDict[MessageKey, str] = BoundedDict(MAX_TOOL_REQUESTS)
        """When requests to our own tools were answered, which no model read."""
        self._causes: set[Cause] = set()
        self._is_telling = False

    async def load(self) -> None:
        """Load who follows which message."""
        try:
            stored = await self._store.follows()
        except StoreUnusable as error:
            logger.warning("followers of receipts not loaded: %s", error)
            return
        self._follows.update({(one.key, one.follower): one.told for one in stored})

    # -- questions ---------------------------------------------------------------------------------------

    async def of(self, request: RequestReceipts, asked_by: str) -> ReadReceipts:
        """See `ReceiptSource`. If `asked_by` sent no message with an id, the newest one of another sender is meant."""
        found: list[ReadReceipt] = []
        for name in request.ids:
            key = MessageKey(request.sender or asked_by, name)
            receipt = await self.receipt(key)
            if receipt.state == "unknown" and request.sender is None and (other := await self._sender_of(name)):
                key = MessageKey(other, name)
                receipt = await self.receipt(key)
            found.append(receipt)
            if request.follow:
                await self._keep(key, asked_by, _told(receipt))
        return ReadReceipts(receipts=tuple(found))

    async def _sender_of(self, message_id: str) -> str | None:
        try:
            senders = (*self._inbox.senders_of(message_id), *await self._store.senders_of(message_id))
        except StoreUnusable:
            senders = self._inbox.senders_of(message_id)
        return next(iter(senders), None)

    async def receipt(self, key: MessageKey) -> ReadReceipt:
        """Return the receipt of one message."""
        known: dict[str, Any] = {"id": key.id, "sender": key.sender, "participant": self._messenger.id}
        if (answered_at := self._requests.get(key)) is not None:
            return ReadReceipt(state="answered", in_context="no", basis="tool", at=answered_at, **known)
        chat = self._inbox.find(key)
        try:
            record = _present(await self._store.message(key), chat)
            session = None if chat is None else chat.envelope.body.get("session")
            if record.ending is not None:
                session = record.ending.session
            holding = await self._hold(record, key, session if isinstance(session, str) else None)
        except StoreUnusable as error:
            return ReadReceipt(
                state="unknown", in_context="unknown", basis=self._basis, reason=f"not readable: {error}", **known
            )
        if chat is not None and chat.state not in ("answering", "answered", "cancelled"):
            holding = NOT_HELD  # an earlier message had the same id
        place = None if chat is None else self._inbox.place_of(chat)
        return _receipt(chat, record, holding, {**known, "basis": self._basis, "place": place})

    # -- followers ---------------------------------------------------------------------------------------

    async def arrived(self, chat: Envelope) -> None:
        """Follow a chat for its sender, if it asks for receipts."""
        if chat.body.get("receipts") is True:
            await self._keep(MessageKey(chat.sender, chat.id), chat.sender, "")
            self.changed(MessageKey(chat.sender, chat.id))

    def note_request(self, request: Envelope, at: str) -> None:
        """Note that a tool of ours answered a request."""
        self._requests[MessageKey(request.sender, request.id)] = at

    async def context_changed(self, form: InContext) -> None:
        """See `ReceiptSource`; the form is looked up instead."""
        self.changed("context")

    def follow(self, event: PromptRead | HistoryChanged) -> None:
        """Tell followers what a conversation has read, or what left its history or returned."""
        self.changed("read" if isinstance(event, PromptRead) else "context")

    def changed(self, cause: Cause) -> None:
        """Tell followers what changed. Returns at once."""
        if self._follows:
            self._causes.add(cause)
            if not self._is_telling:
                self._is_telling = True
                self._messenger.session.start_soon(self._tell)

    async def _tell(self) -> None:
        """Send what changed until nothing more does."""
        try:
            while self._causes:
                causes, self._causes = self._causes, set()
                for (key, follower), told in tuple(self._follows.items()):
                    is_due = key in causes or ("context" if _is_read(told) else "read") in causes
                    if is_due and (key, follower) in self._follows:
                        await self._tell_one(key, follower, told)
        finally:
            self._is_telling = False

    async def _tell_one(self, key: MessageKey, follower: str, told: str) -> None:
        receipt = await self.receipt(key)
        if (now := _told(receipt)) == told:
            return
        await self._keep(key, follower, now)
        if receipt.state == "refused" and follower == key.sender:
            return  # its sender was told with the refusal
        answer = Acknowledge(status=_status(receipt, told), receipt=receipt.model_copy(update={"history": ()}))
        try:
            await self._messenger.send(
                kinds.CHAT_ACKNOWLEDGE, answer, to=(follower,), correlation_id=(key.id,), confirm=False
            )
        except (GatewayError, NotPermitted) as error:
            self._messenger.session.log_failure(error, f"receipt for '{follower}' not sent")

    async def _keep(self, key: MessageKey, follower: str, told: str) -> None:
        """Remember what a follower was told, in the store too."""
        self._follows[key, follower] = told
        change = ReceiptChange(follows=(Follow(key, follower, told),))
        try:
            await self._store.change_inbox(InboxChange(receipts=change))
        except StoreUnusable as error:
            logger.warning("follower of a receipt not stored: %s", error)


def _told(receipt: ReadReceipt) -> str:
    """Return what a follower knows with this receipt: its state, and the form in context if a model has read it."""
    return receipt.state if receipt.call is None else f"{receipt.state} {receipt.in_context}"


def _is_read(told: str) -> bool:
    return " " in told


def _status(receipt: ReadReceipt, told: str) -> str:
    """Return the status that tells a follower the change since `told`: a new state, or else a new form in context."""
    state = "read" if receipt.state == "in_prompt" else receipt.state
    return state if told.partition(" ")[0] != receipt.state else receipt.in_context


def _present(record: MessageRecord, chat: StoredChat | None) -> MessageRecord:
    """Return the record of a chat that is not finished, without an earlier message of the same id."""
    if chat is None:
        return record
    entries = tuple(one for one in record.entries if one.seq is None or one.seq >= chat.first_seq >= 0)
    return replace(record, entries=entries, ending=None)


def _receipt(chat: StoredChat | None, record: MessageRecord, holding: Holding, known: dict[str, Any]) -> ReadReceipt:
    """Return the receipt of a message: unfinished in the inbox, ended, in the history, or not known."""
    ending, queued_at = record.ending, None
    if chat is not None and chat.sent_at is not None:
        queued_at = wire_timestamp(datetime.fromtimestamp(chat.sent_at, UTC))
    events = [] if chat is None else [ReceiptEvent(what="queued", at=queued_at)]
    events += holding.events
    values: dict[str, Any] = {
        "in_context": holding.in_context,
        "call": holding.call,
        "summary": holding.summary,
        "compaction": holding.compaction,
        "reason": holding.reason,
    }
    if ending is not None and ending.what != "kept":
        events.append(ReceiptEvent(what=ending.what, at=ending.at, reason=ending.reason))
        events.sort(key=lambda one: one.at or "")
        values |= {"state": ending.what, "at": ending.at, "answer": ending.answer}
        values["reason"] = ending.reason or holding.reason
    elif chat is not None and chat.state in ("answered", "cancelled"):
        values["state"] = chat.state
    elif holding.call is not None:
        values |= {"state": "in_prompt", "at": holding.call.at}
    elif chat is not None or record.entries:
        reason = None if chat is None else WAITS.get(chat.state)
        values |= {"state": "queued", "at": queued_at, "reason": holding.reason or reason}
    else:
        values |= {"state": "unknown", "in_context": "unknown", "reason": NEVER_ARRIVED}
    return ReadReceipt.model_validate({**known, **values, "history": tuple(events)})
