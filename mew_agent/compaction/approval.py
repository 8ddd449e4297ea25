"""[pure] Asking before a compaction: the proposal, the approval, and the duration of a rejection.

Does not know who may decide, nor how a proposal is sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mew_protocol.context_report import MAX_PIN_CHARS
from mew_protocol.status_word import StatusWord, status_word
from mew_settings.setting_problems import first_problem
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mew_agent.compaction.planner import STUB_TOKENS, CompactionPlan, Prices
from mew_agent.context.history import History, Item

SHOWN_CHARS: Final = 80
MAX_LINES: Final = 8

REJECTION_PART: Final = 20
"""A rejection ends when the context has grown by 1/20 of the window."""

REJECTION_SECONDS: Final = 600.0
"""A rejection also ends after this time."""


@dataclass(frozen=True, slots=True)
class ProposedCompaction:
    """A compaction to approve. `requested_by` None: the agent's policy wants it."""

    plan: CompactionPlan
    trigger: str
    target_tokens: int | None
    revision: int  # of the history that the plan is for
    requested_by: str | None = None
    reason: str | None = None


class ApprovedCompaction(BaseModel):
    """Changes by an approver: the size to compact to, and lines to pin first. Other keys stay as proposed."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    target_tokens: int | None = Field(default=None, ge=0, strict=True)
    pins: tuple[str, ...] = Field(default=(), max_length=MAX_LINES)


@dataclass(frozen=True, slots=True)
class CompactionDecision:
    """The decision about a proposal: approved or rejected, by which participant, and the reason.

    `target_tokens` and `proposed` are those of an approved one; None: as the policy or the requester wants it.
    """

    outcome: Literal["approved", "rejected", "unanswered", "urgent", "dropped"]
    text: str
    target_tokens: int | None = None
    proposed: ProposedCompaction | None = None

    @property
    def allows(self) -> bool:
        """Whether the compaction runs."""
        return self.outcome not in ("rejected", "dropped")

    @property
    def status(self) -> StatusWord:
        """The decision as a status."""
        return status_word(f"compaction_{self.outcome}", self.text)

    @property
    def sentence(self) -> str:
        """The decision as reports and answers show it."""
        return f"{self.outcome} by {self.text}" if self.outcome in ("approved", "rejected") else self.text

    def plan_for(self, history: History) -> CompactionPlan | None:
        """Return the plan that was approved; None if another target was chosen or the history is another one."""
        proposed = self.proposed
        if proposed is None or self.target_tokens is not None or proposed.revision != history.revision:
            return None
        return proposed.plan


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejection, at this size of the next request and at this time."""

    text: str
    tokens: int
    at_seconds: float

    def holds(self, tokens: int, window_tokens: int, at_seconds: float) -> bool:
        """Return whether the same question would only be repeated."""
        has_grown = (tokens - self.tokens) * REJECTION_PART >= window_tokens
        return not has_grown and at_seconds - self.at_seconds < REJECTION_SECONDS


def proposal_arguments(
    proposed: ProposedCompaction, history: History, prices: Prices, *, present_tokens: int, summary_tokens: int
) -> dict[str, Any]:
    """Describe a compaction: removed and kept items, tokens freed, tokens spent. All sizes are projected.

    `freed_tokens` is what is freed if the summary uses its whole budget, so rather too little; `cost_tokens` is what
    the summary call reads and writes.
    """
    plan = proposed.plan
    leaving, staying = plan.leaving(history.items), plan.staying(history.items)
    cleared = [item for item in staying if item.seq in plan.stub_seqs]
    budget = plan.summary_budget_tokens
    replaced = plan.evicted_tokens + (summary_tokens if budget else 0)
    freed = replaced - budget + sum(max(0, prices[item.seq] - STUB_TOKENS) for item in cleared)
    described: dict[str, Any] = {
        "trigger": proposed.trigger,
        "reason": proposed.reason,
        "requested_by": proposed.requested_by,
        "target_tokens": proposed.target_tokens,
        "present_tokens": present_tokens,
        "freed_tokens": max(0, freed),
        "cost_tokens": replaced + budget if budget else 0,
        "basis": "projected",
        "leaves": _extent(leaving),
        "cleared_results": len(cleared),
        "stays": {**_extent(staying), "pins": len(history.pins)},
    }
    return {key: value for key, value in described.items() if value is not None}


def read_approval(arguments: object) -> ApprovedCompaction:
    """Read the arguments of an approver's request. Raises `ValueError` naming the argument and the expected value."""
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping):
        raise ValueError("arguments: must be an object")
    try:
        approved = ApprovedCompaction.model_validate(dict(arguments))
    except ValidationError as error:
        raise ValueError(f"arguments.{first_problem(error)}") from None
    for line in approved.pins:
        if not line.strip() or len(line) > MAX_PIN_CHARS:
            raise ValueError(f"arguments.pins: each line must have 1 to {MAX_PIN_CHARS:,} characters")
    return approved


def _extent(items: list[Item]) -> dict[str, Any]:
    said = [item for item in items if item.role != "tool" and item.content.strip()]
    known: dict[str, Any] = {"messages": len(items), "turns": len({item.turn for item in items})}
    if said:
        known |= {"from": items[0].at, "to": items[-1].at, "first": _excerpt(said[0]), "last": _excerpt(said[-1])}
    return known


def _excerpt(item: Item) -> str:
    line = " ".join(item.content.split())
    short = line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}..."
    return f"{item.name}: {short}" if item.name else short
