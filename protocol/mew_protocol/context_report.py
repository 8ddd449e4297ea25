"""[pure] The context report: how full a participant's context window is, and how that is known.

It is the `context` key of `participant/status` and the one shape every reader uses: the compaction trigger, the
board, the dashboard, the terminal, scripts and the text shown to the model (docs/reference/context-report.md).
Its rule: a number is reported by the provider or labelled as what it is. Unknown is absent, never 0.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Basis = Literal["reported", "projected", "unknown"]
"""How `tokens` is known: said by the provider, derived from what it said, or not at all."""

UnknownReason = Literal[
    "no_call_yet", "usage_unavailable", "limit_unavailable", "cleared", "restarted", "model_changed"
]

Measure = Literal["total", "prompt", "cumulative"]
"""Which figure a policy compares: prompt + completion of the last call, its prompt, or the sum of all calls."""

LimitBasis = Literal["configured", "loaded", "trained", "assumed"]
"""How `max_tokens` is known: set by the user, the server's running instance, the model's maximum, our default."""

NextPromptBasis = Literal["exact", "server_counted", "tokenizer", "projected", "heuristic"]

PartName = Literal["prefix", "summary", "pins", "messages", "tool_results", "reply", "unsent"]
PartBasis = Literal["exact", "reported", "projected"]

CompactionTrigger = str
"""Why a compaction ran: `threshold`, `would_overflow`, `overflow_error`, `requested`, `threshold_projected`."""

Tokens = int


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class LastReported(_Part):
    """The newest figure a provider reported, kept visible while `tokens` is absent or projected."""

    tokens: int = Field(ge=0)
    measured_at: str
    call_id: str


class BreakdownPart(_Part):
    """One part of the window, in tokens. `exact` parts are differences of two reported figures."""

    part: PartName
    tokens: int = Field(ge=0)
    basis: PartBasis


class LastCompaction(_Part):
    """What the newest compaction did. All counts in tokens; `freed_tokens` is net: before minus after."""

    at: str
    trigger: CompactionTrigger
    tokens_before: int | None = None
    tokens_after: int | None = None
    freed_tokens: int
    freed_gross_tokens: int
    summary_tokens: int
    freed_messages: int
    basis: PartBasis


class Injection(_Part):
    """A recovery prompt or countdown now in force in the agent's prompt."""

    kind: str
    remaining: int | None = None
    text: str = ""


class SavingSuggestion(_Part):
    """A way to save tokens: what to do, the projected saving, and how much of the context's worth goes with it."""

    text: str
    tokens_saved: int = Field(ge=0)
    impact: Literal["low", "medium", "high"]


class ContextReport(_Part):
    """How full a context window is, as one moment of the agent knows it.

    `tokens` and `max_tokens` travel beside it in the status payload; see `ParticipantStatus.tokens`. Where the
    measure is `cumulative`, `spent_tokens` of `budget_tokens` is what all calls took together: money, not a part of
    the window.
    """

    basis: Basis
    reason: UnknownReason | None = None
    last_reported: LastReported | None = None
    measure: Measure = "total"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
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
    model: str | None = None

    @model_validator(mode="after")
    def _reason_goes_with_unknown(self) -> Self:
        if (self.basis == "unknown") != (self.reason is not None):
            raise ValueError("`reason` is given exactly when `basis` is 'unknown'")
        return self
