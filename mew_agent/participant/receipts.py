"""Read receipts of a participant: what it has read, and what became of the messages that it sent.

Owns the answer of a program that says itself which messages its model has read, and the tracking of our own messages.
Does not know inboxes or prompts; see `mew_agent.agent.receipts` for those of an agent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from mew_protocol import kinds
from mew_protocol.bounded_dict import BoundedDict
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.chat import Acknowledge, chat_refusal_in
from mew_protocol.payloads.receipts import InContext, PromptCall, ReadReceipt, ReadReceipts, RequestReceipts
from pydantic import PrivateAttr, ValidationError

from mew_agent.errors import ChatRefused, PeerTimeout
from mew_agent.participant.dispatcher import Subscriber
from mew_agent.participant.peers import PeerChanges

MAX_REPORTED: Final = 10_000
"""How many messages that a program has read are kept."""

MAX_TRACKED: Final = 1_000
"""How many of our own messages are tracked."""


class ReceiptSource:
    """Answers for the messages that a participant received. This class knows those that its program reports as read."""

    def __init__(self, participant: str) -> None:
        self._participant = participant
        self._read: BoundedDict[str, PromptCall] = BoundedDict(MAX_REPORTED)
        self._forms: dict[InContext, int] = {}
        """The newest report that a change of the context covers, by the form that it left."""
        self._reports = 0

    def note_read(self, ids: Iterable[str], at: str) -> None:
        """Note that a prompt of our program contained the messages with these ids."""
        self._reports += 1
        call = PromptCall(number=self._reports, id=f"{self._participant}-{self._reports}", at=at)
        for name in ids:
            self._read.setdefault(name, call)

    async def context_changed(self, form: InContext) -> None:
        """Note the form in which the context holds everything read so far: `unknown` after a compaction, or `gone`."""
        self._forms[form] = self._reports

    async def of(self, request: RequestReceipts, asked_by: str) -> ReadReceipts:
        """Return the receipts of messages that `asked_by` sent, unless the request names another sender."""
        return ReadReceipts(receipts=tuple(self._receipt(name, request.sender or asked_by) for name in request.ids))

    def _receipt(self, message_id: str, sender: str) -> ReadReceipt:
        call = self._read.get(message_id)
        known: dict[str, Any] = {"id": message_id, "participant": self._participant, "sender": sender}
        if call is None:
            reason = "it has not reported that a prompt held it" if self._reports else "it keeps no receipts"
            return ReadReceipt(state="unknown", in_context="unknown", basis="agent_reported", reason=reason, **known)
        form: InContext = "whole"
        for later in ("unknown", "gone"):
            if self._forms.get(later, 0) >= call.number:
                form = later
        return ReadReceipt(state="in_prompt", in_context=form, basis="agent_reported", call=call, at=call.at, **known)


@dataclass(eq=False)
class _Sent:
    """What is known of one of our messages, by participant."""

    receipts: dict[str, ReadReceipt] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    changed: anyio.Event = field(default_factory=anyio.Event)


class SentReceipts(Subscriber):
    """Keeps the newest receipts of our own messages; see `SentChat`."""

    follows = (kinds.CHAT_ACKNOWLEDGE, kinds.PARTICIPANT_RECEIPTS)

    def __init__(self) -> None:
        self._sent: BoundedDict[str, _Sent] = BoundedDict(MAX_TRACKED)

    def track(self, message_id: str) -> _Sent:
        """Keep what arrives about a message from now on."""
        return self._sent.setdefault(message_id, _Sent())

    def receive(self, envelope: Envelope, changes: PeerChanges) -> None:
        """Read receipts in answers and acknowledgements about our messages."""
        for receipt in _receipts_in(envelope):
            if (sent := self._sent.get(receipt.id)) is not None and receipt.participant == envelope.sender:
                sent.receipts[receipt.participant] = receipt
                _wake(sent)
        if (problem := chat_refusal_in(envelope)) is not None:
            for name in envelope.correlation_ids:
                if (sent := self._sent.get(name)) is not None:
                    sent.refusals[envelope.sender] = problem
                    _wake(sent)


class SentChat(Envelope):
    """A chat that we sent, and what became of it.

    `await sent.read()` waits until every addressee has read it; `receipt` and `receipts` are the newest receipts.
    """

    _state: _Sent = PrivateAttr(default_factory=_Sent)
    _ask: Any = PrivateAttr(default=None)

    @classmethod
    def tracked(cls, envelope: Envelope, state: _Sent, ask: Any) -> "SentChat":
        """Return a sent envelope with its receipts. `ask` requests them from a participant and follows them."""
        sent = cls.model_validate(envelope.as_dict(), by_alias=True, by_name=False)
        sent._state, sent._ask = state, ask
        return sent

    @property
    def receipts(self) -> Mapping[str, ReadReceipt]:
        """The newest receipt of each addressee that has sent one."""
        return self._state.receipts

    @property
    def receipt(self) -> ReadReceipt | None:
        """The newest receipt of the only addressee; None before `read`, or with several addressees."""
        return self._state.receipts.get(self.addressees[0]) if len(self.addressees) == 1 else None

    async def read(self, *, timeout_seconds: float = 300.0) -> Mapping[str, ReadReceipt]:
        """Wait until a model of every addressee has read the chat. Returns the receipts by participant.

        Raises `ChatRefused` if an addressee refuses it, `PeerTimeout`, and the errors of `receipts`.
        """
        if not self.addressees:
            raise ValueError("a chat to everyone has no addressees to wait for; name them with `to`")
        for peer in self.addressees:
            if peer not in self._state.receipts:
                await self._ask(peer, self.id)
        with anyio.move_on_after(timeout_seconds):
            while (waiting := self._unread()) is not None:
                self._state.changed = anyio.Event()
                await self._state.changed.wait()
            return self._state.receipts
        assert waiting is not None
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


def _receipts_in(envelope: Envelope) -> tuple[ReadReceipt, ...]:
    """Return the readable receipts in an envelope."""
    try:
        if envelope.kind == kinds.PARTICIPANT_RECEIPTS:
            return ReadReceipts.model_validate(envelope.body).receipts
        one = Acknowledge.model_validate(envelope.body).receipt
    except ValidationError:
        return ()
    return () if one is None else (one,)


def _wake(sent: _Sent) -> None:
    sent.changed.set()
