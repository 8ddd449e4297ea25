"""[pure] `chat`: messages, acknowledgements and cancellations."""

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.payloads.base import Payload


class Chat(Payload):
    """A message. `format` is `plain` or `markdown`.

    `needs_reply` says whether its sender expects an answer; an agent that reads none decides by the text. An extension.
    """

    text: str = Field(min_length=1)
    format: str | None = None
    needs_reply: bool | None = None


class Acknowledge(Payload):
    """A message arrived; `correlation_id` names it. `status` is `received`, `processing`, `queued`, `read`, ..."""

    status: str | None = None


class ChatCancel(Payload):
    """A message needs no answer any more; `correlation_id` names it."""

    reason: str | None = None


PAYLOADS: dict[str, type[Payload]] = {
    kinds.CHAT: Chat,
    kinds.CHAT_ACKNOWLEDGE: Acknowledge,
    kinds.CHAT_CANCEL: ChatCancel,
}
