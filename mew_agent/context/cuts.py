"""[pure] Tokens freed by a cut of the history: by our accounts, and by a server's count.

Owns both results, and the correction of the first by the second. `Tracker` has the accounts.
"""

from dataclasses import asdict, dataclass, replace
from typing import Literal

from mew_protocol.context_report import CompactionCost, LastCompaction, PartBasis, SummaryWriter


@dataclass(frozen=True, slots=True)
class CutOutcome:
    """The result of a compaction or forget, in tokens."""

    trigger: str
    tokens_before: int | None
    tokens_after: int | None
    freed_tokens: int  # net: before minus after, if both are known
    freed_gross_tokens: int  # including the summary's tokens
    summary_tokens: int
    freed_messages: int
    basis: PartBasis
    freed_gross_basis: PartBasis = "projected"
    summary_by: SummaryWriter | None = None
    summary_problem: str | None = None
    cost: CompactionCost | None = None
    approval: str | None = None
    reason: str | None = None

    def as_last_compaction(self, at: str) -> LastCompaction:
        """Return the outcome in the form of the report, for a compaction that ended at this time."""
        return LastCompaction(at=at, **asdict(self))


CountBasis = Literal["server_counted", "exact"]


@dataclass(frozen=True, slots=True)
class CountedCut:
    """The next request before and after a cut, in tokens: counted by the server, or reported if `exact`."""

    before: int
    after: int
    without_summary: int | None = None  # after the cut, without the new summary; None if there is none
    is_next_prompt: bool = True  # whether the next request itself was counted, not a similar one
    basis: CountBasis = "server_counted"

    @property
    def freed_tokens(self) -> int:
        """Tokens freed by the cut, net."""
        return self.before - self.after

    @property
    def summary_tokens(self) -> int | None:
        """Tokens of the new summary; None without one."""
        return None if self.without_summary is None else self.after - self.without_summary

    def correct(self, outcome: CutOutcome, tokens_after: int | None) -> CutOutcome:
        """Return the outcome with these figures instead of projected ones, and the context's size after the cut."""
        return replace(
            outcome,
            tokens_after=tokens_after,
            freed_tokens=self.freed_tokens,
            freed_gross_tokens=self.freed_tokens + (self.summary_tokens or 0),
            summary_tokens=self.summary_tokens or 0,
            basis=self.basis,
            freed_gross_basis=self.basis,
        )
