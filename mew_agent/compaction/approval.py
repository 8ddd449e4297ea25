"""[pure] A compaction that may need a participant's approval, and the decision about it.

A part chooses the approvers and asks them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from mew_protocol.context_report import MAX_PIN_CHARS
from mew_protocol.status_word import StatusWord, status_word
from mew_settings.setting_problems import first_problem
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mew_agent.compaction.planner import CompactionPlan
from mew_agent.context.history import History

MAX_LINES: Final = 8


@dataclass(frozen=True, slots=True)
class ProposedCompaction:
    """A compaction to approve. `requested_by` None: the agent's policy wants it."""

    plan: CompactionPlan
    trigger: str
    target_tokens: int | None
    revision: int  # of the history before the plan
    requested_by: str | None = None
    reason: str | None = None


class ApprovedCompaction(BaseModel):
    """Changes by an approver: the size to compact to, and lines to pin first. Other keys stay as proposed."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    target_tokens: int | None = Field(default=None, ge=0, strict=True)
    pins: tuple[str, ...] = Field(default=(), max_length=MAX_LINES)


@dataclass(frozen=True, slots=True)
class CompactionDecision:
    """The decision about a proposal: approved or rejected, the participant, and the reason.

    `target_tokens` and `proposed` belong to an approved one; None: as the policy or the requester wants it.
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
        """The decision as a sentence, for reports and answers."""
        return f"{self.outcome} by {self.text}" if self.outcome in ("approved", "rejected") else self.text

    def plan_for(self, history: History) -> CompactionPlan | None:
        """Return the approved plan; None if the approver chose another target or the history has changed."""
        proposed = self.proposed
        if proposed is None or self.target_tokens is not None or proposed.revision != history.revision:
            return None
        return proposed.plan


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
