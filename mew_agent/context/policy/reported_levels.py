"""[pure] Levels, by the default policy, of figures that a program reports itself."""

from dataclasses import dataclass, field, replace
from typing import Final

from mew_protocol.context_report import Basis

from mew_agent.context.policy import (
    MEW,
    ContextSnapshot,
    PolicyState,
    after_clear,
    after_compaction,
    is_stalled,
    level_of,
)

POLICY: Final = MEW.model_copy(update={"bases": ("reported", "agent_reported")})


@dataclass
class ReportedLevels:
    """The level of each figure, and whether compactions help. Decides nothing: the program compacts on its own."""

    name: str = POLICY.name
    _state: PolicyState = field(default_factory=PolicyState)

    def level_of(self, tokens: int, basis: Basis, limit_tokens: int | None) -> tuple[str, int | None]:
        """Return the level's name and severity; ("unknown", None) if the level is unknown."""
        return level_of(POLICY, ContextSnapshot(tokens, basis, limit_tokens))

    @property
    def is_stalled(self) -> bool:
        """Whether several compactions in a row did not help."""
        return is_stalled(POLICY, self._state)

    def compacted(self, *, progressed: bool) -> None:
        """Record a compaction, and whether it helped."""
        self._state = after_compaction(self._state, progressed=progressed, at_seconds=None)

    def window_grew(self) -> None:
        """Forget the failed compactions of a smaller window."""
        self._state = replace(self._state, stalls=0)

    def cleared(self) -> None:
        """Start over after a clear."""
        self._state = after_clear(self._state)
