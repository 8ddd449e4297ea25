"""[pure] What the accounts hand out: what a cut did, and what of them survives a restart of the process."""

from dataclasses import dataclass

from mew_protocol.context_report import LastCompaction, LastReported, PartBasis
from pydantic import BaseModel, ConfigDict

from mew_agent.context.policy import PolicyState


class Anchor(BaseModel):
    """A reported prompt less what was cut since, so that a restarted process projects from there.

    It holds the items up to `last_seq`; the counts are the features of what was sent beside them (see `projection`).
    `model` is the one that was asked: another one's figure would say nothing.
    """

    model_config = ConfigDict(frozen=True)

    prompt_tokens: int
    last_seq: int
    prefix_counts: tuple[int, ...]
    pins_counts: tuple[int, ...]
    model: str


class SavedContext(BaseModel):
    """What survives a restart of the process. Figures are tokens."""

    model_config = ConfigDict(frozen=True)

    last_reported: LastReported | None = None
    measured_revision: int = 0
    measured_seq: int = -1
    measured_reply_seq: int | None = None
    compactions: int = 0
    last_compaction: LastCompaction | None = None
    policy_state: PolicyState = PolicyState()
    served_model: str | None = None
    calibrations: dict[str, tuple[float, ...]] = {}
    spent_tokens: int = 0
    anchor: Anchor | None = None


@dataclass(frozen=True, slots=True)
class CutOutcome:
    """What a compaction or forget did, in tokens.

    `freed_tokens` is net: before minus after, where these are known. Gross, it counts the summary as freed, too.
    """

    trigger: str
    tokens_before: int | None
    tokens_after: int | None
    freed_tokens: int
    freed_gross_tokens: int
    summary_tokens: int
    freed_messages: int
    basis: PartBasis

    def as_last_compaction(self, at: str) -> LastCompaction:
        """What reports show of it, if it was a whole compaction that ended then."""
        return LastCompaction(
            at=at,
            trigger=self.trigger,
            tokens_before=self.tokens_before,
            tokens_after=self.tokens_after,
            freed_tokens=self.freed_tokens,
            freed_gross_tokens=self.freed_gross_tokens,
            summary_tokens=self.summary_tokens,
            freed_messages=self.freed_messages,
            basis=self.basis,
        )
