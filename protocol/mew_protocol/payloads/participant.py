"""[pure] `participant/*`: the status of a participant, and its controls.

Reads the contents and the addressees of controls. Participants carry controls out; the gateway enforces pauses and
shutdowns.
"""

from datetime import datetime
from typing import Final, Literal, NamedTuple, Self, cast, get_args

from pydantic import Field, model_validator

from mew_protocol import kinds
from mew_protocol.context_report import (
    MAX_PIN_CHARS,
    CompactionCost,
    ContextReport,
    Outdated,
    PartBasis,
    PinReport,
    SummaryWriter,
    report_time,
)
from mew_protocol.envelope import Draft, Envelope, wire_timestamp
from mew_protocol.errors import PayloadError
from mew_protocol.payloads.base import PAYLOADS, Payload, read_payload
from mew_protocol.payloads.read_receipts import RequestReceipts
from mew_protocol.payloads.retrieval import Recall, RequestHistory, Undo
from mew_protocol.status_word import StatusWord


class PinnedText(PinReport):
    """A pin with its text, in the answer to a `participant/request-status` with the field `pins`."""

    text: str


MAX_PREFIX_PARTS: Final = 100
"""How many parts of a prefix an answer lists. Smaller tools are summed up as one part."""


class PrefixPart(Payload):
    """One part of an agent's prompt before its history, in tokens.

    `tool` has the `name` of a tool. `other_tools` are `count` smaller ones together.
    """

    part: Literal["system_prompt", "tool", "other_tools", "reminders", "response_format"]
    name: str | None = None
    count: int | None = Field(default=None, ge=1)
    tokens: int = Field(ge=0)
    basis: PartBasis


class Status(Payload, kind=kinds.PARTICIPANT_STATUS):
    """`participant/status`: a participant's report of itself.

    `messages_in_context` counts history items without system prompt and pins. `tokens` is present only if known;
    `context.basis` says how it is known. `pins` and `prefix` are present only if requested. Further metrics in
    snake_case are allowed.
    """

    messages_in_context: int = Field(ge=0)
    tokens: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, gt=0)
    status: str | None = None
    latency_ms: int | None = None
    context: ContextReport | None = None
    pins: tuple[PinnedText, ...] | None = None
    prefix: tuple[PrefixPart, ...] | None = None

    @property
    def word(self) -> StatusWord:
        """The parsed `status`."""
        return StatusWord.read(self.status)

    @model_validator(mode="after")
    def _figures_are_possible(self) -> Self:
        report = self.context
        if self.tokens is None or report is None:
            return self
        if report.basis == "unknown":
            raise ValueError("`tokens` is not allowed if `context.basis` is 'unknown'")
        # A projected figure is the rest of the call with this prompt after a compaction.
        if report.basis in ("reported", "agent_reported", "provisional") and self.tokens < (report.prompt_tokens or 0):
            raise ValueError("`tokens` is below `context.prompt_tokens`")
        return self


_NO_REPORT: Final = ContextReport.model_construct(basis="unknown")


def report_of(status: Status | None) -> ContextReport:
    """Return the context report of a status; without one, an empty report."""
    return _NO_REPORT if status is None or status.context is None else status.context


def check_new_status(status: Status, newest: datetime | None = None) -> datetime | None:
    """Return the time of measurement of a new status; None without one.

    `newest` is the time of its sender's newest figures. Raises `PayloadError` for older figures, for a time that is not
    ISO 8601 with a time zone, and for 0 tokens, which agents send before their first call, when the size is unknown.
    """
    report = status.context
    if report is None:
        return None
    if status.tokens == 0 and report.basis in ("reported", "agent_reported", "provisional"):
        problem = "0 is not a measured size; leave it out, with `context.basis` 'unknown'"
        raise PayloadError(kinds.PARTICIPANT_STATUS, "payload.tokens", problem)
    if report.measured_at is None:
        return None
    field = "payload.context.measured_at"
    try:
        measured_at = report_time(report.measured_at)
    except ValueError:
        problem = f"{report.measured_at!r} is not a time; expected ISO 8601 with a time zone: 2026-01-31T12:00:00Z"
        raise PayloadError(kinds.PARTICIPANT_STATUS, field, problem) from None
    if newest is not None and measured_at < newest:
        problem = f"{report.measured_at} is older than the figures reported before, of {wire_timestamp(newest)}"
        raise PayloadError(kinds.PARTICIPANT_STATUS, field, problem)
    return measured_at


ESTIMATE: Final = "estimate"
"""Label of a figure without a stated source: clients without a context report estimate it."""


def basis_label(tokens: int | None, report: ContextReport | None) -> str:
    """Return a figure's basis as a word; without a context report, `estimate` or `unknown`."""
    if report is not None:
        return report.basis
    return "unknown" if tokens is None else ESTIMATE


def refusal_in(status: object) -> str | None:
    """Return why a status refuses a request: the detail of `refused`. None if it is not a refusal."""
    read = StatusWord.read(status)
    return read.detail if read.word == "refused" else None


def is_preliminary(answer: Draft, control: str) -> bool:
    """Return True if an answer to a control of this kind does not end it: its work has begun, and another one follows.

    A participant without the capability `participant/compact-done` reports the outcome in a status with a word.
    """
    if answer.kind != kinds.PARTICIPANT_STATUS or control not in (kinds.PARTICIPANT_COMPACT, kinds.PARTICIPANT_FORGET):
        return False
    word = StatusWord.read(answer.body.get("status"))
    return word.has("begun") or (control == kinds.PARTICIPANT_COMPACT and not word.word)


def is_whole_status(status: Draft) -> bool:
    """Return True if a `participant/status` may replace the sender's last one.

    A status for one requester may contain only the requested fields. It is whole if it has everything that its
    `context` implies. The word `refused` is about a single request.
    """
    body = status.body
    if not status.to:
        return True
    if refusal_in(body.get("status")) is not None:
        return False
    context = body.get("context")
    if not isinstance(context, dict):
        return "tokens" in body and "max_tokens" in body
    if "basis" not in context or "level" not in context or "revision" not in context:
        return False
    tokens_known = context["basis"] != "unknown"
    return ("tokens" in body or not tokens_known) and ("max_tokens" in body or "max_tokens_basis" not in context)


class StoredMessages(Payload):
    """The chats sent to a participant by name while it is away, and the oldest one's time.

    `is_complete` is false if the gateway has restarted since the participant left, so there may be earlier ones.
    """

    messages: int = Field(ge=1)
    oldest_at: str
    is_complete: bool


class UnreadMessages(NamedTuple):
    """The unread messages of a participant, and the oldest one's time.

    `is_complete` is false if there may be earlier ones.
    """

    messages: int
    oldest_at: str | None
    is_complete: bool


class BoardEntry(Payload):
    """The last whole status of one participant, and its age.

    `figure_at` is the time when its size was first reported, by the gateway's clock; absent for an unknown size.
    `outdated` says why the size may be old; absent if it is from the last turn. `seconds_to_compaction` is the
    projected time until the context reaches its compaction limit, or its window, at the growth of the last hour; absent
    if the size is old, unknown or not growing. `stored` counts the messages that wait at the gateway for an absent
    participant.
    """

    id: str
    connected: bool
    status: Status | None = None
    status_id: str | None = None
    received_at: str | None = None
    age_seconds: float | None = None
    figure_at: str | None = None
    outdated: Outdated | None = None
    seconds_to_compaction: int | None = None
    stored: StoredMessages | None = None

    @property
    def unread(self) -> UnreadMessages | None:
        """Unread chats: the participant's own count, or the gateway's while it is away.

        None if neither counts.
        """
        queued = report_of(self.status).queued
        stored = None if self.connected else self.stored
        if stored is None:
            return None if queued is None else UnreadMessages(queued.messages, queued.oldest_at, is_complete=True)
        if queued is None or not queued.messages:
            return UnreadMessages(stored.messages, stored.oldest_at, stored.is_complete)
        return UnreadMessages(queued.messages + stored.messages, queued.oldest_at, stored.is_complete)


class Board(Payload):
    """`GET /spaces/{id}/context`: the last status of every participant of a space."""

    space: str
    name: str | None = None
    at: str
    participants: tuple[BoardEntry, ...] = ()


class Pause(Payload, kind=kinds.PARTICIPANT_PAUSE):
    """Stop sending until a resume, or for `timeout_seconds` if given."""

    reason: str | None = None
    timeout_seconds: float | None = Field(default=None, ge=0)


class Resume(Payload, kind=kinds.PARTICIPANT_RESUME):
    """End a pause."""

    reason: str | None = None


class FitQuestion(Payload):
    """The size of a text that may fit: `tokens`, or the counts of its `features`.

    The features come from the asker's `mew_agent.tokens.projection`; an agent with other features does not answer.
    """

    tokens: int | None = Field(default=None, ge=0)
    features: tuple[float, ...] | None = Field(default=None, max_length=100)


class RequestStatus(Payload, kind=kinds.PARTICIPANT_REQUEST_STATUS):
    """Request a status. `fields` limits it to these keys; `latency` means `latency_ms`.

    The answer to `fit` has a key `fit` with a `mew_protocol.payloads.text_fit.Fit`, if the agent knows.
    """

    fields: tuple[str, ...] | None = None
    fit: FitQuestion | None = None


class Forget(Payload, kind=kinds.PARTICIPANT_FORGET):
    """Drop history entries from one end (default: half of them)."""

    direction: Literal["oldest", "newest"]
    entries: int | None = Field(default=None, ge=1)


class Compact(Payload, kind=kinds.PARTICIPANT_COMPACT):
    """Compact the history to `target_tokens`, or to `target_percent` of the window; `target_tokens` takes precedence.

    Without either, everything except the protected tail is compacted. `interrupt` cancels the running turn of an agent
    that can only compact between turns; it continues afterwards.
    """

    reason: str | None = None
    interrupt: bool | None = None
    target_tokens: int | None = Field(default=None, ge=0)
    target_percent: int | None = Field(default=None, ge=1, le=100)

    def target_in(self, window_tokens: int) -> int | None:
        """Return the target in tokens, for a window of this size; rounded down."""
        if self.target_tokens is not None or self.target_percent is None:
            return self.target_tokens
        return window_tokens * self.target_percent // 100


class CompactDone(Payload, kind=kinds.PARTICIPANT_COMPACT_DONE):
    """The answer to every `participant/compact`. `freed_tokens` is net: the new summary is subtracted.

    `tokens_before` and `tokens_after` are absent if the size was unknown. `basis` says how `freed_tokens` is known.
    `summary_by`, `summary_problem`, `cost` and `approval` as in `LastCompaction`.
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
    summary_by: SummaryWriter | None = None
    summary_problem: str | None = None
    cost: CompactionCost | None = None
    approval: str | None = None

    @classmethod
    def as_skipped(cls, reason: str) -> Self:
        """Return the answer of a participant that did not compact."""
        return cls(status="skipped", skipped=True, reason=reason)

    @classmethod
    def from_status(cls, status: Status) -> Self:
        """Read the outcome from the final status of a participant that may not send `participant/compact-done`."""
        if status.word.word == "compaction_failed":
            return cls.as_skipped(status.word.detail or "no reason given")
        if status.word.word != "compacted":  # a skipped compaction changes nothing
            return cls.as_skipped("no reason given")
        if status.context is None and not status.tokens and not status.messages_in_context:
            return cls.as_skipped("no_context")
        report = report_of(status)
        if (last := report.last_compaction) is None:
            basis = report.basis if status.tokens is not None else None
            return cls(
                status="compacted",
                tokens_after=status.tokens,
                max_tokens=status.max_tokens,
                basis=basis if basis in ("reported", "server_counted", "projected") else None,
            )
        return cls(
            status="compacted",
            freed_tokens=last.freed_tokens,
            freed_messages=last.freed_messages,
            tokens_before=last.tokens_before,
            tokens_after=last.tokens_after,
            max_tokens=status.max_tokens,
            basis=last.basis,
        )


class Clear(Payload, kind=kinds.PARTICIPANT_CLEAR):
    """Delete the whole history."""

    reason: str | None = None


class PinRequest(Payload, kind=kinds.PARTICIPANT_PIN):
    """Send this text verbatim with every request to the model. Repeating it changes nothing.

    The answer is a status with `pinned`, `already_pinned` or `refused:REASON`.
    """

    text: str = Field(min_length=1, max_length=MAX_PIN_CHARS)


class UnpinRequest(Payload, kind=kinds.PARTICIPANT_UNPIN):
    """Remove a pin, named by its id or its whole text. The answer is a status with `unpinned` or `refused:REASON`."""

    pin: str = Field(min_length=1)


class Restart(Payload, kind=kinds.PARTICIPANT_RESTART):
    """Close the participant's own streams and delete its history."""

    mode: str | None = None
    reason: str | None = None


class Shutdown(Payload, kind=kinds.PARTICIPANT_SHUTDOWN):
    """Leave the space and exit."""

    reason: str | None = None


Control = (
    Pause
    | Resume
    | RequestStatus
    | Forget
    | Compact
    | Clear
    | PinRequest
    | UnpinRequest
    | Restart
    | Shutdown
    | RequestHistory
    | Undo
    | Recall
    | RequestReceipts
)
"""The payload of any control."""

CONTROL_ANSWERS: Final = {
    kinds.PARTICIPANT_REQUEST_HISTORY: kinds.PARTICIPANT_HISTORY,
    kinds.PARTICIPANT_UNDO: kinds.PARTICIPANT_UNDO_DONE,
    kinds.PARTICIPANT_RECALL: kinds.PARTICIPANT_RECALL_DONE,
    kinds.PARTICIPANT_REQUEST_RECEIPTS: kinds.PARTICIPANT_RECEIPTS,
}
"""The kind that answers each control with an answer of its own."""

CONTROLS: Final[dict[str, type[Control]]] = {
    kind: cast("type[Control]", model) for kind, model in PAYLOADS.items() if model in get_args(Control)
}

MAY_ADDRESS_EVERYBODY: Final = frozenset(
    {kinds.PARTICIPANT_PAUSE, kinds.PARTICIPANT_RESUME, kinds.PARTICIPANT_REQUEST_STATUS}
)
"""Controls that may be sent without `to`. Every other control changes a history and has to name its addressees."""


def read_control(draft: Draft) -> Control | None:
    """Return the control in an envelope, or None. Raises `PayloadError` with the name of the field."""
    model = CONTROLS.get(draft.kind or "")
    return None if model is None else read_payload(draft, model)


def is_control_for(envelope: Envelope, participant: str) -> bool:
    """Return True if a participant must carry out this control. A broadcast control excludes its sender."""
    if envelope.kind in MAY_ADDRESS_EVERYBODY:
        return envelope.is_for(participant) and envelope.sender != participant
    return envelope.kind in CONTROLS and envelope.names(participant)
