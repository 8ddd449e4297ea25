"""[pure] Read receipts: whether an agent has read a message, and its form in the context.

Owns the request for receipts, its answer, and the words for states. Agents never guess: `unknown` is a state.
"""

from typing import Final, Literal

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.payloads.base import Payload

MAX_RECEIPT_IDS: Final = 100
"""How many messages one request may ask about."""

ReceiptState = Literal["stored", "queued", "refused", "cancelled", "in_prompt", "answered", "unknown"]
"""`stored`: the gateway has it, the receiver has not said anything. `queued`: it waits at the receiver. `in_prompt`: a
prompt that a model read contained it. `answered`: its answer was sent. `refused`, `cancelled`: no answer follows."""

InContext = Literal["whole", "shortened", "reference", "summary", "recoverable", "gone", "no", "unknown"]
"""What the next prompt holds of a message: all of it, a shortened form, or a `reference` to a text kept outside; only
the `summary` holds a part; `recoverable` by a search of the archive; `gone`; `no`, because it never entered."""

SummaryTrace = Literal["quoted", "mentioned"]
"""`quoted`: the summary holds its words. `mentioned`: the summary cites it, or holds a part of it."""

ReceiptBasis = Literal["prompt", "agent_prompt", "relayed_prompt", "agent_reported", "gateway"]
"""How a state is known: `prompt`, from the agent's own prompts; `agent_prompt`, from the prompt given to a third-party
agent; `relayed_prompt`, from a request that `mew meter` relayed; `agent_reported`, a program says so; `gateway`, from
the log of the space."""


class PromptCall(Payload):
    """The first model call with a message in its prompt. `number` counts the agent's calls or prompts from 1."""

    number: int = Field(ge=1)
    id: str
    at: str


class ReceiptEvent(Payload):
    """One step of a message. `what` is a state, a form in the context, or `undone`.

    `compaction` is the number of the compaction, forget or clear that caused it; `trigger` is its trigger.
    """

    what: ReceiptState | InContext | Literal["undone"]
    at: str | None = None
    call: int | None = None
    compaction: int | None = None
    trigger: str | None = None
    reason: str | None = None


class ReadReceipt(Payload):
    """The receipt of one message at one participant.

    `place` is its place in the queue, from 1. `position` is its place in the space. `answer` is the id of the answer.
    `at` is the start of the current state. `reason` says why it is refused, or why something is unknown. `compaction`
    is the number of the change that removed it from the prompt.
    """

    id: str
    participant: str
    sender: str | None = None
    state: ReceiptState
    in_context: InContext
    basis: ReceiptBasis
    position: str | None = None
    place: int | None = Field(default=None, ge=1)
    call: PromptCall | None = None
    answer: str | None = None
    summary: SummaryTrace | None = None
    compaction: int | None = None
    reason: str | None = None
    at: str | None = None
    history: tuple[ReceiptEvent, ...] = ()

    @property
    def is_read(self) -> bool:
        """Whether a model has read the message."""
        return self.call is not None

    def __str__(self) -> str:
        """For people: `read by coder in call 14`, `coder: queued, place 2`."""
        if self.call is not None:
            return f"read by {self.participant} in call {self.call.number}"
        place = f", place {self.place}" if self.place is not None else ""
        reason = f": {self.reason}" if self.reason is not None else ""
        return f"{self.participant}: {self.state.replace('_', ' ')}{place}{reason}"


class RequestReceipts(Payload, kind=kinds.PARTICIPANT_REQUEST_RECEIPTS):
    """Request the receipts of messages from `sender` (default: the requester).

    With `follow`, the agent also sends a `chat/acknowledge` for each later change of these messages.
    """

    ids: tuple[str, ...] = Field(min_length=1, max_length=MAX_RECEIPT_IDS)
    sender: str | None = None
    follow: bool = False


class ReadReceipts(Payload, kind=kinds.PARTICIPANT_RECEIPTS):
    """The answer to `participant/request-receipts`: one receipt for each id, in the order of the request."""

    receipts: tuple[ReadReceipt, ...] = ()
