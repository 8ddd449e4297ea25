"""[pure] `chat`: messages, acknowledgements and cancellations."""

from typing import Any, Final

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.payloads.base import Payload
from mew_protocol.payloads.participant import Status
from mew_protocol.payloads.read_receipts import ReadReceipt
from mew_protocol.payloads.text_fit import WOULD_OVERFLOW, Delivery, Fit
from mew_protocol.status_word import StatusWord

MAIN_SESSION = "main"
"""The agent's own conversation, where every chat without `session` is answered."""


SESSION_NAME = r"^[A-Za-z0-9._:%@~-]{1,48}$"
"""Valid names of sessions, as a regular expression."""


def client_of(session: object) -> str:
    """Return the client part of a session's name, before its colon. Empty for any other value."""
    client, separator, _ = session.partition(":") if isinstance(session, str) else ("", "", "")
    return client if separator else ""


SESSIONS_UNSUPPORTED: Final = "sessions_unsupported"
RESPONSE_FORMAT_UNSUPPORTED: Final = "response_format_unsupported"
"""The codes of refusals by agents that cannot answer in a `session`, or in a `response_format`."""
REFUSED: Final = "refused"
"""The code of a refusal for another reason, in a chat."""
REFUSAL_CODES: Final = frozenset(
    {
        *("queue_full", "budget_spent", "program_failed", WOULD_OVERFLOW),
        *(SESSIONS_UNSUPPORTED, RESPONSE_FORMAT_UNSUPPORTED, REFUSED),
    }
)
"""The codes of all refusals."""


def chat_refusal_in(envelope: Draft) -> str | None:
    """Return why a `chat/acknowledge` refuses its chat; None for other envelopes.

    No answer to that chat follows.
    """
    status = StatusWord.read(envelope.body.get("status"))
    is_refusal = envelope.kind == kinds.CHAT_ACKNOWLEDGE and status.word == "refused"
    return (status.detail or "no reason given") if is_refusal else None


def may_answer(envelope: Draft, sent: Envelope, *, does_correlate: bool = False) -> bool:
    """Return True if an envelope of the recipient may answer the sent one: it refers to it.

    People and some agents do not correlate. Their answer to a chat refers to nothing and is addressed to its sender.
    A recipient that began to reason with a reference to the chat does correlate.
    """
    if sent.kind == kinds.CHAT and not (envelope.correlation_ids or does_correlate):
        return sent.sender in envelope.addressees
    return envelope.refers_to(sent.id)


class TokenUsage(Payload):
    """Tokens as the provider reported them, for one model call or summed. Unknown figures are absent."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)
    reasoning_tokens: int | None = Field(default=None, ge=0)
    cached_tokens: int | None = Field(default=None, ge=0)


class TurnReport(Payload):
    """The cost of an answer, and the context after it.

    `usage` sums all `calls` of the turn, including summaries; it is absent unless the provider reported each call.
    `last_call` is the usage of the newest main call. `is_new` says that the session began with this turn. `problem` is
    why the answer reports a failure. `status` is the session's.
    """

    session: str = MAIN_SESSION
    is_new: bool = False
    calls: int = Field(default=0, ge=0)
    calls_without_usage: int = Field(default=0, ge=0)
    usage: TokenUsage | None = None
    last_call: TokenUsage | None = None
    problem: str | None = None
    status: Status | None = None


class ChatFailure(Payload):
    """Why a chat is not the requested answer.

    `code` is `failed`, `timeout`, `killed` (the program ended several times while it answered), `too_old`, `refused`,
    or that of a refusal (see `Acknowledge`) by an agent that may not acknowledge. `problem` says why, for people.
    """

    code: str = Field(min_length=1)
    problem: str = ""


class Chat(Payload, kind=kinds.CHAT):
    """A message. `format` is `plain` or `markdown`. The other keys are extensions.

    `needs_reply` says whether its sender expects an answer; without it, an agent decides by the text. `session` names
    the sender's own conversation in which an agent answers; the answer then has `turn`. `response_format` has the shape
    of OpenAI's parameter and applies to that answer. `deliver` says how to deliver an earlier chat of the sender that
    the agent holds; `correlation_id` names it. `would_overflow` says that a chat is held, and why. `receipts` requests
    a `chat/acknowledge` for each change of its receipt. `failure` marks a chat in which an agent reports that it cannot
    answer. `urgent` asks an agent to read the chat before the next step of a running turn, if its settings allow that.
    """

    text: str = Field(min_length=1)
    format: str | None = None
    needs_reply: bool | None = None
    session: str | None = Field(default=None, pattern=SESSION_NAME)
    response_format: dict[str, Any] | None = None
    turn: TurnReport | None = None
    deliver: Delivery | None = None
    would_overflow: Fit | None = None
    receipts: bool | None = None
    failure: ChatFailure | None = None
    urgent: bool | None = None


class Acknowledge(Payload, kind=kinds.CHAT_ACKNOWLEDGE):
    """A message arrived; `correlation_id` names it. `status` is `received`, `processing`, `queued`, `read`, ...

    With `would_overflow` the agent says that the message does not fit now: `fit` has the figures, `held` says whether
    the agent holds it, and `choices` lists the sender's options for delivery. A `status` of `refused:REASON` says that
    no answer follows, and `code` why: `queue_full` (too many messages of its sender wait), `budget_spent` (of its
    sender), `program_failed` (the program could not handle it), `would_overflow` (it can never fit; `fit` has the
    figures), `sessions_unsupported` or `response_format_unsupported` (the agent's program supports neither). With a
    `receipt` the status is `read`, another state, or the message's form in the context after a change. `reason` says
    why a `queued` message waits, except behind others.
    """

    status: str | None = None
    fit: Fit | None = None
    held: bool | None = None
    code: str | None = None
    choices: tuple[Delivery, ...] | None = None
    receipt: ReadReceipt | None = None
    reason: str | None = None


class ChatCancel(Payload, kind=kinds.CHAT_CANCEL):
    """A message no longer needs an answer; `correlation_id` names it."""

    reason: str | None = None
