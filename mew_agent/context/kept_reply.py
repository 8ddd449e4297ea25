"""[pure] The reply of the newest kept call: part of its reported total, although no prompt has held it yet.

Owns how much of the present figure it is, and how much of that was hidden reasoning that is never sent again. It does
not know what else the context holds.
"""

from dataclasses import dataclass

from mew_agent.context.measures import Measure
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import Calibration


@dataclass
class KeptReply:
    """`tokens` it adds to the reported prompt, `hidden_tokens` of them hidden; `seq` is its item's in the history."""

    tokens: int = 0
    hidden_tokens: int = 0
    seq: int | None = None
    is_awaited: bool = False
    """Whether its call was kept, and it has not entered the history yet."""

    def reported(self, usage: Usage) -> None:
        """A call was kept that reported so much."""
        self.tokens, self.is_awaited = max(0, usage.total_tokens - usage.prompt_tokens), True

    def enter(self, measure: Measure, calibration: Calibration) -> bool:
        """An item entered. Returns whether it is the one that was awaited."""
        if not self.is_awaited:
            return False
        self.is_awaited, self.seq = False, measure.seq
        kept = measure.sized_tokens(calibration)
        if kept is None:
            kept = min(self.tokens, calibration.project(measure.features, messages=0))
        self.hidden_tokens = max(0, self.tokens - kept)
        return True

    def is_in(self, first_seq: int, last_seq: int) -> bool:
        """Whether it is one of these items."""
        return self.seq is not None and first_seq <= self.seq <= last_seq

    def forget(self) -> None:
        """There is none any more whose tokens are part of the present figure."""
        self.tokens, self.hidden_tokens, self.seq = 0, 0, None
