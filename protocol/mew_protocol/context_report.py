"""[pure] The context report: how full a participant's context window is, and the basis of its figures.

It is the `context` key of `participant/status`. Every reader uses this form: the compaction trigger, the board, the
dashboard, the terminal, scripts, and the text shown to the model. The rule: a number is either reported by the provider
or labelled with its basis. An unknown number is absent, never 0 (docs/reference/context-report.md). Also decides when a
figure is old: the context may have changed since the report. A new status is never old.
"""

import hashlib
from datetime import datetime
from typing import Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

Basis = Literal["reported", "server_counted", "projected", "agent_reported", "provisional", "unknown"]
"""How `tokens` is known: reported by the provider; reported, minus what its server counted as freed since; derived from
reports; reported by an agent of another project about itself; preliminary (a reply that had not ended, or a call that
no later one has continued); or not known."""

UnknownReason = Literal[
    "no_call_yet",
    "usage_unavailable",
    "usage_implausible",
    "limit_unavailable",
    "cleared",
    "restarted",
    "model_changed",
    "compacted",
]

Measure = Literal["total", "prompt", "cumulative"]
"""The figure that a policy compares: prompt and completion of the last call, its prompt, or the sum of all calls."""

LimitBasis = Literal["configured", "loaded", "trained", "assumed", "agent_reported"]
"""How `max_tokens` is known: configured, from the running server, the maximum of the model, our default, or said by a
foreign agent."""

NextPromptBasis = Literal["exact", "server_counted", "tokenizer", "projected", "heuristic"]

PartName = Literal["prefix", "summary", "pins", "messages", "tool_results", "reply", "unsent"]
PartBasis = Literal["exact", "reported", "server_counted", "tokenizer", "projected"]
"""How a part is known: the difference of two reports, a report, a count by the provider's server, counts of the model's
tokenizer that have predicted reports to the token, or a projection."""

COUNTED: Final = frozenset({"exact", "reported", "server_counted"})
"""Bases of figures that are shown without `~`."""

CompactionTrigger = str
"""Why a compaction ran: `threshold`, `threshold_projected`, `next_task`, `would_overflow`, `overflow_error`,
`requested`."""

MAX_PINS: Final = 32
"""How many texts may be pinned in one agent, those of its settings included."""

MAX_PIN_CHARS: Final = 4_000
"""How long one pinned text may be, in characters."""


MAX_FIGURE: Final = 2**63 - 1
"""A larger figure is not plausible. Databases and monitoring systems cannot store it, nor can it be calculated with."""

_Figure = TypeVar("_Figure", int, float)


def plausible(figure: _Figure | None) -> _Figure | None:
    """Return a figure that a participant reported, None if it is implausibly large."""
    return figure if figure is not None and abs(figure) <= MAX_FIGURE else None


def known_sum(one: _Figure | None, other: _Figure | None) -> _Figure | None:
    """Return the sum of two figures; None if one is unknown."""
    return None if one is None or other is None else one + other


def answer_reserve_tokens(window_tokens: int) -> int:
    """Return the room reserved for an answer: 1/20 of the window, at most 4,096 tokens."""
    return min(4_096, window_tokens // 20)


class _ReportModel(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)


def report_time(at: str) -> datetime:
    """Return the time in a report. Raises ValueError for another form, or a time without a zone."""
    moment = datetime.fromisoformat(at)
    if moment.tzinfo is None:
        raise ValueError(f"{at!r} has no time zone")
    return moment


class LastReported(_ReportModel):
    """The provider's newest figure, shown while `tokens` is absent or projected."""

    tokens: int = Field(ge=0)
    measured_at: str
    call_id: str | None = None


class BreakdownPart(_ReportModel):
    """One part of the context, in tokens. An `exact` part is the difference of two reported figures."""

    part: PartName
    tokens: int = Field(ge=0)
    basis: PartBasis


SummaryWriter = Literal["model", "extract"]
"""Who wrote a summary: a model, or the agent itself by quoting sentences of the messages."""


class CallCosts(_ReportModel):
    """Tokens and money of model calls: sums of the provider's reports.

    Tokens are absent if no call reported them, `cached_tokens` unless each did, and `amount` unless the price of each
    is configured.
    """

    calls: int | None = Field(default=None, ge=0)
    prompt_tokens: int | None = Field(default=None, ge=0)
    cached_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)
    amount: float | None = Field(default=None, ge=0)
    currency: str | None = None

    @property
    def spent_tokens(self) -> int | None:
        """Tokens of the calls; None if unknown."""
        return known_sum(self.prompt_tokens, self.completion_tokens)

    def __str__(self) -> str:
        """For people: `2,310 tokens in 1 call (1,900 cached), 0.0123 USD`; empty if unknown."""
        return self._with("")

    def _with(self, detail: str) -> str:
        """Return the costs for people, with one more detail of the tokens unless it is empty."""
        cached = "" if self.cached_tokens is None else f"{self.cached_tokens:,} cached"
        known = f" ({details})" if (details := ", ".join(filter(None, (cached, detail)))) else ""
        calls = "" if self.calls is None else f" in {self.calls:,} call{'' if self.calls == 1 else 's'}"
        tokens = "" if self.spent_tokens is None else f"{self.spent_tokens:,} tokens{calls}{known}"
        money = "" if self.amount is None else f"{self.amount:.4g} {self.currency or ''}".rstrip()
        return ", ".join(one for one in (tokens, money) if one)


class Spending(CallCosts):
    """All model calls of a conversation, including summaries. A clear does not reset it.

    `calls` counts calls with reported usage. `unreported_calls` counts the others, which no other figure includes.
    """

    unreported_calls: int = Field(default=0, ge=0)

    def __str__(self) -> str:
        return self._with(f"{self.unreported_calls:,} more not reported" if self.unreported_calls else "")


class CompactionCost(CallCosts):
    """The cost of a compaction: its calls for summaries and measurements.

    Tokens are absent without a call, or if a call reported none. `freed_per_token` is the net freed tokens per token of
    these calls. `cache_lost_tokens` are the last call's cached tokens that later calls cannot use: projected, and
    absent if the provider reports no cached tokens.
    """

    calls: int = Field(ge=0)
    freed_per_token: float | None = None
    cache_lost_tokens: int | None = Field(default=None, ge=0)

    def __str__(self) -> str:
        return self._with("" if self.freed_per_token is None else f"{self.freed_per_token:.1f} freed per token")


class LastCompaction(_ReportModel):
    """The last compaction. Counts are in tokens; `freed_tokens` is net: before minus after, absent if unknown.

    `basis` is the basis of `freed_tokens`; `freed_gross_basis` that of the removed tokens, without the new summary.
    `summary_by` is absent without a summary; `summary_problem` says why no model wrote it. `approval` is present if the
    agent asks before it compacts: the approver, or why it ran without approval. `reason` is the requester's reason, or
    a detail of the trigger.
    """

    at: str
    trigger: CompactionTrigger
    tokens_before: int | None = None
    tokens_after: int | None = None
    freed_tokens: int | None = None
    freed_gross_tokens: int | None = None
    summary_tokens: int | None = None
    freed_messages: int | None = None
    basis: PartBasis
    freed_gross_basis: PartBasis | None = None
    summary_by: SummaryWriter | None = None
    summary_problem: str | None = None
    cost: CompactionCost | None = None
    approval: str | None = None
    reason: str | None = None


class Injection(_ReportModel):
    """A recovery prompt or countdown in the agent's current prompt."""

    kind: str
    remaining: int | None = None
    text: str = ""


class PinReport(_ReportModel):
    """A text that an agent sends verbatim with every request. `tokens` is projected.

    `hash` comes from `pin_hash`, so that a peer can check the text. `origin` is the participant that pinned it, `agent
    settings` or `space settings`.
    """

    id: str
    hash: str
    tokens: int = Field(ge=0)
    origin: str


def pin_hash(text: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a pinned text in UTF-8."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


class SavingSuggestion(_ReportModel):
    """A way to save tokens: the action, the projected saving, and the lost share of the context's value."""

    text: str
    tokens_saved: int = Field(ge=0)
    impact: Literal["low", "medium", "high"]


class Waiting(_ReportModel):
    """Why an agent waits, and since when.

    `approval`: its proposal `proposal` to `peer` is undecided; `tool` and `arguments` are the proposed ones, without
    arguments too long to report. `loop`: it does not answer the agent `peer` until a person or a program sends a chat.
    `room`: the chat `message` of `peer` does not fit and is held. `model`: its last model call failed; `what` names the
    server and the cause. `tools`: its model does not get all tools of `peer`; `what` says why. `budget`: it answers
    `peer` again once its hourly budget has room; `what` has the figures. `who_may_answer` are the connected
    participants that may approve. It is empty for other kinds: anyone can end a loop, and a held chat's sender decides
    about it.
    """

    kind: Literal["approval", "loop", "room", "model", "tools", "budget"]
    what: str
    since: str
    peer: str | None = None
    who_may_answer: tuple[str, ...] = ()
    proposal: str | None = None
    tool: str | None = None
    arguments: dict[str, Any] | None = None
    message: str | None = None


class AgentMode(_ReportModel):
    """The current mode of a third-party agent, with the agent's own name.

    `asks` says whether the agent asks before it writes files or runs commands; absent if unknown. `chosen` says whether
    its settings name this mode.
    """

    id: str
    asks: bool | None = None
    chosen: bool = False


class Progress(_ReportModel):
    """The progress of an agent's long task: `done` of `total`, in `unit`, since `since`.

    `compaction`: the history is summarised in pieces, each with a model call; a single call reports no progress.
    `total` is the current estimate and may change.
    """

    kind: Literal["compaction"]
    done: int = Field(ge=0)
    total: int = Field(ge=1)
    unit: Literal["pieces"]
    since: str


class SenderSpending(_ReportModel):
    """Tokens spent on answers to one sender within the hour before `at`.

    `tokens` sums the reported tokens, and is absent without reports; `unreported_calls` (for some agents: turns)
    reported none. From `budget_tokens` on, the agent does not answer the sender.
    """

    participant: str
    tokens: int | None = Field(default=None, ge=0)
    unreported_calls: int = Field(default=0, ge=0)
    budget_tokens: int = Field(ge=1)
    at: str


class QueuedMessages(_ReportModel):
    """The unread chats: their number, their tokens, and the arrival of the oldest that needs an answer."""

    oldest_at: str | None = None
    messages: int = Field(ge=0)
    tokens: int = Field(ge=0)
    basis: Literal["tokenizer", "projected", "heuristic"]


class SessionContext(_ReportModel):
    """The context of one session: a separate conversation of an agent with `participant`.

    The keys are those of a status. Its `context` only has the keys that show how full the session is.
    """

    session: str
    participant: str
    messages_in_context: int = Field(ge=0)
    tokens: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, gt=0)
    status: str | None = None
    context: "ContextReport"


class ContextReport(_ReportModel):
    """The state of a context window at one moment, as known to its agent.

    `tokens` and `max_tokens` are in the status payload itself; see `Status`. With the measure `cumulative`,
    `spent_tokens` of `budget_tokens` is the total of all calls: a cost, not a part of the window.
    """

    basis: Basis
    reason: UnknownReason | None = None
    last_reported: LastReported | None = None
    measure: Measure | None = None
    prompt_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)
    reasoning_tokens: int | None = Field(default=None, ge=0)
    cached_tokens: int | None = Field(default=None, ge=0)
    spending: Spending | None = None
    spent_for: tuple[SenderSpending, ...] | None = None
    spent_tokens: int | None = Field(default=None, ge=0)
    budget_tokens: int | None = Field(default=None, ge=1)
    max_tokens_basis: LimitBasis | None = None
    level: str = "unknown"
    severity: int | Literal["unknown"] = "unknown"
    policy: str | None = None
    compact_at_tokens: int | None = None
    next_prompt_tokens: int | None = None
    next_prompt_basis: NextPromptBasis | None = None
    breakdown: tuple[BreakdownPart, ...] | None = None
    tokens_per_turn: float | None = None
    turns_to_compaction: int | None = None
    stale_messages: int = 0
    measured_at: str | None = None
    call_id: str | None = None
    revision: int = 0
    compactions: int = 0
    last_compaction: LastCompaction | None = None
    drift_tokens: int | None = None
    injection: Injection | None = None
    suggestions: tuple[SavingSuggestion, ...] | None = None
    waiting: tuple[Waiting, ...] | None = None
    progress: Progress | None = None
    queued: QueuedMessages | None = None
    sessions: tuple[SessionContext, ...] | None = None
    pins: tuple[PinReport, ...] | None = None
    model: str | None = None
    mode: AgentMode | None = None

    @model_validator(mode="after")
    def _reason_goes_with_unknown(self) -> Self:
        if (self.basis == "unknown") != (self.reason is not None):
            raise ValueError("`reason` is required if `basis` is 'unknown', and not allowed otherwise")
        return self


Outdated = Literal["before_join", "messages_since"]
"""Why a figure may not be true any more: its participant joined again since, or it sent or got chats since and reports
only when it is asked."""


def reports_only_when_asked(tokens: int | None, report: ContextReport | None) -> bool:
    """Return True if a figure is from a participant that does not report each change on its own."""
    return tokens is not None and report is None


def outdated_by(
    event: Literal["join", "chat"],
    tokens: int | None,
    report: ContextReport | None,
    before: Outdated | None = None,
) -> Outdated | None:
    """Return why a figure is old after its participant joined or after a chat from or to it; None if it is not old.

    `before` is an earlier reason.
    """
    if tokens is None:
        return None
    if event == "join":
        return "before_join"
    return "messages_since" if before is None and reports_only_when_asked(tokens, report) else before
