"""Read receipts of a participant, for received and for sent messages.

Owns the envelopes to followers (at most one per change of a message), the receipts of programs that report their reads,
and the tracking of our own messages. An agent's inbox and prompts are in `mew_agent.agent.inbox_receipts`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol
from uuid import UUID, uuid5

import anyio
from mew_listener.bounded_dict import BoundedDict
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.ids import Position
from mew_protocol.payloads import read_or_none
from mew_protocol.payloads.chat import Acknowledge, chat_refusal_in
from mew_protocol.payloads.read_receipts import InContext, PromptCall, ReadReceipt, ReadReceipts, RequestReceipts
from pydantic import PrivateAttr

from mew_agent.context.message_facts import Cause, MessageKey, ReceiptFollower, ReceiptFollowers
from mew_agent.errors import ChatRefused, GatewayError, NotAccepted, NotPermitted, PeerTimeout
from mew_agent.participant.messenger import Messenger

MAX_REPORTED: Final = 10_000
"""How many messages that a program has read are kept."""

MAX_TRACKED: Final = 1_000
"""How many of our own messages are tracked."""

TELL_SECONDS: Final = 1.0
"""How long an answer may wait until the followers of its messages know that they were read."""

_NAMESPACE: Final = UUID("2b1d6f0e-8a3c-4d0f-9c55-7f0c3a6e9b41")


class ReceiptBook(Protocol):
    """The receipts of the messages that a participant received."""

    changed: Callable[..., None] = staticmethod(lambda *_: None)
    """Tells followers of changes; see `ReceiptSource`, which sets it."""

    async def receipt(self, key: MessageKey) -> ReadReceipt:
        """Return the receipt of one message."""
        ...

    async def sender_of(self, message_id: str) -> str | None:
        """Return the participant that sent the newest message with this id; None if there is none."""
        return None

    def note_read(self, ids: Iterable[str], at: str) -> None:
        """Note that a prompt of the program contained these messages."""
        return

    def context_changed(self, form: InContext) -> None:
        """Set the form of all messages read so far: `unknown` after a compaction, or `gone`."""
        return

    async def keep(self, news: ReceiptFollower) -> None:
        """Store the last news of a follower, if there is a store."""
        return


class ReportedReads(ReceiptBook):
    """The messages that a participant's program reports as read."""

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        self._read: BoundedDict[str, PromptCall] = BoundedDict(MAX_REPORTED)
        self._forms: dict[InContext, int] = {}
        """The newest report that a change of the context covers, by the form that it left."""
        self._reports = 0

    def note_read(self, ids: Iterable[str], at: str) -> None:
        self._reports += 1
        call = PromptCall(number=self._reports, id=f"{self._messenger.id}-{self._reports}", at=at)
        for name in ids:
            self._read.setdefault(name, call)
        self.changed("read")

    def context_changed(self, form: InContext) -> None:
        self._forms[form] = self._reports
        self.changed("context")

    async def receipt(self, key: MessageKey) -> ReadReceipt:
        call = self._read.get(key.id)
        known: dict[str, Any] = {"id": key.id, "participant": self._messenger.id, "sender": key.sender}
        if call is None:
            reason = "it has not reported that a prompt held it" if self._reports else "it keeps no receipts"
            return ReadReceipt(state="unknown", in_context="unknown", basis="agent_reported", reason=reason, **known)
        form: InContext = "whole"
        for later in ("unknown", "gone"):
            if self._forms.get(later, 0) >= call.number:
                form = later
        return ReadReceipt(state="in_prompt", in_context=form, basis="agent_reported", call=call, at=call.at, **known)


class ReceiptSource:
    """Answers requests for receipts from a participant's book, and notifies followers of changes.

    Does nothing without followers.
    """

    def __init__(self, messenger: Messenger, book: ReceiptBook) -> None:
        self._messenger, self.book = messenger, book
        book.changed = self.changed
        self.followers = ReceiptFollowers()
        self._causes: set[Cause] = set()
        self._is_telling = False
        self.is_behind = False
        """Whether a follower may not know the newest change: it could not be sent, or an earlier process ended."""

    async def of(self, request: RequestReceipts, asked_by: str) -> ReadReceipts:
        """Return the receipts of messages from `asked_by`, unless the request names another sender.

        If `asked_by` sent no message with an id, use the newest message of another sender with it.
        """
        found: list[ReadReceipt] = []
        for name in request.ids:
            key = MessageKey(request.sender or asked_by, name)
            receipt = await self.book.receipt(key)
            if receipt.state == "unknown" and request.sender is None and (other := await self.book.sender_of(name)):
                key = MessageKey(other, name)
                receipt = await self.book.receipt(key)
            found.append(receipt)
            if request.follow:
                await self.keep_told(key, asked_by, _told(receipt))
        return ReadReceipts(receipts=tuple(found))

    def changed(self, *causes: Cause) -> None:
        """Notify followers of changes. Returns at once."""
        if causes and self.followers.all:
            self._causes.update(causes)
            if not self._is_telling:
                self._is_telling = True
                self._messenger.session.start_soon(self._tell)

    def joined(self) -> None:
        """Send followers the news that they missed. Returns at once."""
        if self.is_behind:
            self.is_behind = False
            self.changed("join")

    async def keep_told(self, key: MessageKey, participant: str, told: str) -> ReceiptFollower:
        """Record the news sent to a follower, also in the book, and return it."""
        before = self.followers.get(key, participant)
        known = ReceiptFollower(key, participant, told, 0 if before is None else before.times + 1)
        self.followers.put(known)
        await self.book.keep(known)
        return known

    async def _tell(self) -> None:
        """Send changes until there are no more."""
        try:
            while self._causes:
                causes, self._causes = self._causes, set()
                async with anyio.create_task_group() as tasks:
                    for due in self.followers.due(causes):
                        tasks.start_soon(self._tell_one, due)
        finally:
            self._is_telling = False

    async def tell(self, keys: Iterable[MessageKey]) -> None:
        """Notify the followers of these messages now, but give up after a moment, because they are notified again
        later.

        The gateway drops repetitions.
        """
        if self.followers.all:
            with anyio.move_on_after(TELL_SECONDS):
                for one in self.followers.due({*keys}):
                    await self._tell_one(one)

    async def refused(self, key: MessageKey, *, is_told: bool) -> None:
        """Note whether a refusal reached its sender. If not, the next join sends a receipt."""
        if self.followers.get(key, key.sender) is None:
            return
        if is_told:
            await self.keep_told(key, key.sender, "refused")
        else:
            self.is_behind = True

    async def _tell_one(self, follower: ReceiptFollower) -> None:
        key, participant, told = follower.key, follower.participant, follower.told
        receipt = await self.book.receipt(key)
        now = _told(receipt)
        if now == told or self.followers.get(key, participant) is None:
            return
        answer = Acknowledge(status=_status(receipt, told), receipt=receipt.model_copy(update={"history": ()}))
        about: dict[str, Any] = {"to": (participant,), "correlation_id": (key.id,)}
        try:
            await self._messenger.send(kinds.CHAT_ACKNOWLEDGE, answer, id=_change_id(receipt, follower), **about)
        except (GatewayError, NotPermitted) as error:
            self._messenger.session.log_failure(error, f"receipt for '{participant}' not sent")
            if not isinstance(error, NotPermitted | NotAccepted):  # these errors would repeat
                self.is_behind = True
                return
        await self.keep_told(key, participant, now)


def _change_id(receipt: ReadReceipt, follower: ReceiptFollower) -> str:
    """Return the id of the envelope about this change. A process killed before it recorded the sending sends it again,
    and the gateway drops the repetition.
    """
    key, times = follower.key, str(follower.times)
    steps = (f"{one.what} {one.call} {one.compaction}" for one in receipt.history)
    parts = (receipt.participant, follower.participant, times, key.sender, key.id, _told(receipt), *steps)
    return str(uuid5(_NAMESPACE, "\n".join(parts)))


def _told(receipt: ReadReceipt) -> str:
    """Return the news in this receipt: its state, and once read, its form in context."""
    return receipt.state if receipt.call is None else f"{receipt.state} {receipt.in_context}"


def _status(receipt: ReadReceipt, told: str) -> str:
    """Return the status that reports the change since `told`: a new state, else a new form in context."""
    state = "read" if receipt.state == "in_prompt" else receipt.state
    return state if told.partition(" ")[0] != receipt.state else receipt.in_context


class _Sent:
    """The receipts of one of our messages, by participant."""

    def __init__(self) -> None:
        self.receipts: dict[str, ReadReceipt] = {}
        self.refusals: dict[str, str] = {}
        self.changed = anyio.Event()

    def wake(self) -> None:
        """Wake all tasks that wait for a change."""
        self.changed.set()
        self.changed = anyio.Event()


class SentReceipts:
    """Keeps the newest receipts of our own messages; see `SentChat`."""

    received_kinds = (kinds.CHAT_ACKNOWLEDGE, kinds.PARTICIPANT_RECEIPTS)

    def __init__(self) -> None:
        self._sent: BoundedDict[str, _Sent] = BoundedDict(MAX_TRACKED)

    def track(self, message_id: str) -> _Sent:
        """Keep all news about a message from now on."""
        return self._sent.setdefault(message_id, _Sent())

    def receive(self, envelope: Envelope) -> None:
        """Read receipts in answers and acknowledgements about our messages."""
        for receipt in _receipts_in(envelope):
            if (sent := self._sent.get(receipt.id)) is not None and receipt.participant == envelope.sender:
                sent.receipts[receipt.participant] = receipt
                sent.wake()
        if (problem := chat_refusal_in(envelope)) is not None:
            for name in envelope.correlation_ids:
                if (sent := self._sent.get(name)) is not None:
                    sent.refusals[envelope.sender] = problem
                    sent.wake()


class SentChat(Envelope):
    """A chat that we sent, with its receipts.

    `await sent.read()` waits until every addressee has read it; `receipt` and `receipts` are the newest receipts. Until
    an addressee answers, its state is `stored`: the gateway has the chat.
    """

    _state: _Sent = PrivateAttr(default_factory=_Sent)
    _ask: Any = PrivateAttr(default=None)
    _position: Position | None = PrivateAttr(default=None)

    @classmethod
    def tracked(cls, envelope: Envelope, position: Position | None, state: _Sent, ask: Any) -> "SentChat":
        """Return a sent envelope with its position and its receipts.

        `ask` requests them from a participant and follows them.
        """
        sent = cls.model_validate(envelope.as_dict(), by_alias=True, by_name=False)
        sent._state, sent._ask, sent._position = state, ask, position
        return sent

    @property
    def position(self) -> str | None:
        """Where the gateway stored it in the space, as `EPOCH-SEQUENCE`; None if the gateway numbers nothing."""
        return None if self._position is None else str(self._position)

    @property
    def receipts(self) -> Mapping[str, ReadReceipt]:
        """The newest receipt of each addressee: its own, or the gateway's `stored`."""
        return {**{name: self._stored(name) for name in self.addressees}, **self._state.receipts}

    @property
    def receipt(self) -> ReadReceipt | None:
        """The newest receipt of the only addressee; None if there are several or none."""
        return self.receipts[self.addressees[0]] if len(self.addressees) == 1 else None

    def _stored(self, participant: str) -> ReadReceipt:
        return stored_receipt(self, participant, self.position)

    async def read(self, *, timeout_seconds: float = 300.0) -> Mapping[str, ReadReceipt]:
        """Wait until a model of every addressee has read the chat. Returns the receipts by participant.

        Raises `ChatRefused` if an addressee refuses it, `PeerTimeout`, and the errors of `receipts`.
        """
        if not self.addressees:
            raise ValueError("a chat to everyone has no addressees to wait for; name them with `to`")
        with anyio.move_on_after(timeout_seconds):
            for peer in self.addressees:
                if peer not in self._state.receipts:
                    await self._ask(peer, self.id)
            while self._unread() is not None:
                await self._state.changed.wait()
        if (waiting := self._unread()) is None:
            return self.receipts
        known = self._state.receipts.get(waiting)
        raise PeerTimeout(waiting, self.kind, timeout_seconds, "" if known is None else str(known))

    def _unread(self) -> str | None:
        """Return an addressee that has not read the chat; None if all have. Raises `ChatRefused`."""
        for peer in self.addressees:
            known = self._state.receipts.get(peer)
            problem = self._state.refusals.get(peer)
            if known is not None and known.state in ("refused", "cancelled"):
                problem = known.reason or known.state
            if problem is not None:
                raise ChatRefused(peer, problem)
            if known is None or not (known.is_read or known.state == "answered"):
                return peer
        return None


def stored_receipt(message: Envelope, participant: str, position: str | None, reason: str | None = None) -> ReadReceipt:
    """Return the receipt that states only the gateway's storage. `reason` says why nothing else is known."""
    return ReadReceipt(
        id=message.id,
        participant=participant,
        sender=message.sender,
        state="stored",
        in_context="unknown",
        basis="gateway",
        position=position,
        at=message.ts,
        reason=reason,
    )


def _receipts_in(envelope: Envelope) -> tuple[ReadReceipt, ...]:
    """Return the readable receipts in an envelope."""
    if envelope.kind == kinds.PARTICIPANT_RECEIPTS:
        known = read_or_none(ReadReceipts, envelope.body)
        return known.receipts if known is not None else ()
    told = read_or_none(Acknowledge, envelope.body)
    return (told.receipt,) if told is not None and told.receipt is not None else ()
