"""Read receipts for an agent at a meter, from the prompts that the meter relays.

A chat is read if a call of the agent's own conversation contained its whole text, and a later call confirmed that
conversation. Otherwise the receipt is unknown, with a reason.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from mew_listener.bounded_dict import BoundedDict
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.read_receipts import PromptCall, ReadReceipt, ReceiptEvent

from mew_agent.context.message_facts import MessageKey
from mew_agent.participant.receipts import ReceiptBook
from mew_agent.parts.meter.main_line import MeteredCall
from mew_agent.parts.meter.relayed_texts import NOTHING, Found, RelayedTexts, TrackedChat

MAX_CALLS: Final = 64
"""How many calls wait for a later one to confirm them."""

NOT_TRACKED: Final = "the meter was not in the space when it was sent, or has seen many later messages"
NOT_SEEN: Final = "no relayed prompt of the agent's own conversation has held its words"
NOT_CONFIRMED: Final = "call {number} held it; the next call shows whether that is the agent's own conversation"
NOT_NOW: Final = "the newest relayed prompt does not hold it word for word"
NOT_MEASURED: Final = "a newer call could not be read"
NOT_RELAYED: Final = "the request continues a response that is stored at the provider"


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest call of the agent's own conversation. `problem`: why its prompt is not fully known."""

    number: int
    held: frozenset[int]
    is_confirmed: bool
    problem: str | None = None


class RelayedReceipts(ReceiptBook):
    """The receipts of chats that the prompts of a metered agent held."""

    def __init__(self, participant: str) -> None:
        self._participant = participant
        self.texts = RelayedTexts()
        self._held: BoundedDict[int, frozenset[int]] = BoundedDict(MAX_CALLS)
        """The contents of the prompts of the newest calls."""
        self._read_in: BoundedDict[MessageKey, PromptCall] = BoundedDict(MAX_CALLS * 64)
        self._newest: _Newest | None = None

    # -- what happens ------------------------------------------------------------------------------------

    def track(self, envelope: Envelope) -> None:
        """Search later prompts for a chat, even one for another participant of the same agent."""
        text = envelope.body.get("text")
        if envelope.kind == kinds.CHAT and envelope.sender != self._participant and isinstance(text, str):
            self.texts.add(MessageKey.of(envelope), text)

    def begun(self, call: MeteredCall, found: Found, newest: MeteredCall | None) -> None:
        """Note the messages in the prompt of a call, and the newest call of the agent's own conversation."""
        self.texts.note(found)
        self._held[call.number] = found.held
        self._follow(newest)

    def ended(self, newest: MeteredCall | None) -> None:
        """Note the newest call of the agent's own conversation after a call ended."""
        self._follow(newest)

    def missed(self) -> None:
        """Note that a call could not be read."""
        if (known := self._newest) is not None:
            self._newest = replace(known, held=NOTHING, problem=NOT_MEASURED)
            self.changed("context")

    def _follow(self, call: MeteredCall | None) -> None:
        known = self._newest
        if call is None:
            return
        is_confirmed = call.verdict == "main"
        if known is not None and (known.number, known.is_confirmed) == (call.number, is_confirmed):
            return
        held = self._held.get(call.number, NOTHING)
        if known is not None and known.number == call.number:
            self._newest = replace(known, is_confirmed=is_confirmed)
        else:
            problem = None if call.facts.previous_response is None else NOT_RELAYED
            self._newest = _Newest(call.number, held, is_confirmed, problem)
        if is_confirmed:
            self._confirm(call, held)
        self.changed("read")
        self.changed("context")

    def _confirm(self, call: MeteredCall, held: frozenset[int]) -> None:
        at = call.measured_at or ""
        read = PromptCall(number=call.number, id=f"{self._participant}-{call.number}", at=at)
        for chat in self.texts.numbered(held):
            if chat.problem is None:
                self._read_in.setdefault(chat.key, read)

    # -- questions ---------------------------------------------------------------------------------------

    async def receipt(self, key: MessageKey) -> ReadReceipt:
        """See `ReceiptBook`."""
        chat, call = self.texts.find(key), self._read_in.get(key)
        problem = NOT_TRACKED if chat is None else chat.problem
        holder = self._holder_of(chat)
        known: dict[str, Any] = {
            "id": key.id,
            "participant": self._participant,
            "sender": key.sender,
            "basis": "relayed_prompt",
        }
        if call is None:
            reason = problem or (NOT_SEEN if holder is None else NOT_CONFIRMED.format(number=holder.number))
            return ReadReceipt(state="unknown", in_context="unknown", reason=reason, **known)
        values: dict[str, Any] = {"state": "in_prompt", "call": call, "at": call.at}
        values["history"] = (ReceiptEvent(what="in_prompt", at=call.at, call=call.number),)
        if problem is None and holder is not None:
            return ReadReceipt(in_context="whole", **values, **known)
        reason = problem or (self._newest.problem if self._newest is not None else None) or NOT_NOW
        return ReadReceipt(in_context="unknown", reason=reason, **values, **known)

    def _holder_of(self, chat: TrackedChat | None) -> "_Newest | None":
        """Return the newest call if its prompt contains this chat."""
        newest = self._newest
        return newest if chat is not None and newest is not None and chat.number in newest.held else None

    async def sender_of(self, message_id: str) -> str | None:
        """See `ReceiptBook`."""
        return next(self.texts.senders_of(message_id), None)
