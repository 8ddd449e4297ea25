"""[pure] `participant/*`: the state of a participant, and the controls over it."""

from typing import Literal

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.context_report import ContextReport, PartBasis
from mew_protocol.envelope import Draft
from mew_protocol.payloads.base import Payload


class Status(Payload):
    """`participant/status`: what a participant says of itself.

    `messages_in_context` counts history items, without system prompt and pins. `tokens` is present only when it
    is known; `context.basis` says how. Any extra snake_case metric may join.
    """

    messages_in_context: int = Field(ge=0)
    tokens: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, gt=0)
    status: str | None = None
    latency_ms: int | None = None
    context: ContextReport | None = None


def is_whole_status(status: Draft) -> bool:
    """Whether a `participant/status` may replace the sender's last one.

    A status for one asker may hold only the fields that were asked for. It is whole if nothing that its own `context`
    implies is missing next to it.
    """
    body = status.body
    if not status.to:
        return True
    context = body.get("context")
    if not isinstance(context, dict):
        return "tokens" in body and "max_tokens" in body
    if "basis" not in context or "level" not in context or "revision" not in context:
        return False
    tokens_known = context["basis"] != "unknown"
    return ("tokens" in body or not tokens_known) and ("max_tokens" in body or "max_tokens_basis" not in context)


class BoardEntry(Payload):
    """The gateway's memory of one participant: its last broadcast status and that status's age."""

    id: str
    connected: bool
    status: Status | None = None
    status_id: str | None = None
    received_at: str | None = None
    age_seconds: float | None = None


class Board(Payload):
    """`GET /spaces/{id}/context`: the last status of every participant of a space."""

    space: str
    name: str | None = None
    at: str
    participants: tuple[BoardEntry, ...] = ()


class Pause(Payload):
    """Stop speaking, for at most `timeout_seconds` when given."""

    reason: str | None = None
    timeout_seconds: float | None = Field(default=None, ge=0)


class Resume(Payload):
    """Speak again."""

    reason: str | None = None


class RequestStatus(Payload):
    """Ask for a status; `fields` narrows it (names of status keys; `latency` means `latency_ms`)."""

    fields: tuple[str, ...] | None = None


class Forget(Payload):
    """Drop history entries from one end; without `entries` half of them."""

    direction: Literal["oldest", "newest"]
    entries: int | None = Field(default=None, ge=1)


class Compact(Payload):
    """Shrink the history. Without `target_tokens`: everything outside the protected tail."""

    reason: str | None = None
    target_tokens: int | None = Field(default=None, ge=0)


class CompactDone(Payload):
    """The answer to every `participant/compact`. `freed_tokens` is net of the summary that took its place.

    `tokens_before` and `tokens_after` are left out when the size was not known; `basis` says how `freed_tokens` is.
    """

    status: str
    skipped: bool = False
    reason: str | None = None
    freed_tokens: int | None = None
    freed_messages: int | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    max_tokens: int | None = None
    basis: PartBasis | None = None


class Clear(Payload):
    """Forget everything."""

    reason: str | None = None


class Restart(Payload):
    """Close own streams and forget everything."""

    mode: str | None = None
    reason: str | None = None


class Shutdown(Payload):
    """Say goodbye and leave."""

    reason: str | None = None


Control = Pause | Resume | RequestStatus | Forget | Compact | Clear | Restart | Shutdown
"""What may be asked of a participant; `mew_protocol.controls` says of whom."""

CONTROLS: dict[str, type[Control]] = {
    kinds.PARTICIPANT_PAUSE: Pause,
    kinds.PARTICIPANT_RESUME: Resume,
    kinds.PARTICIPANT_REQUEST_STATUS: RequestStatus,
    kinds.PARTICIPANT_FORGET: Forget,
    kinds.PARTICIPANT_COMPACT: Compact,
    kinds.PARTICIPANT_CLEAR: Clear,
    kinds.PARTICIPANT_RESTART: Restart,
    kinds.PARTICIPANT_SHUTDOWN: Shutdown,
}

PAYLOADS: dict[str, type[Payload]] = {
    kinds.PARTICIPANT_STATUS: Status,
    kinds.PARTICIPANT_COMPACT_DONE: CompactDone,
    **CONTROLS,
}
