"""[pure] The line of agents that compact or wait to compact, as their statuses say.

Every member receives statuses in the order of the gateway, so all agents have the same line without asking. Does not
know why an agent compacts, and sends nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mew_protocol.status_word import StatusWord

COMPACTING = "compacting"
WAITING = "compaction_waiting"
"""Status words of agents that compact, and that wait until fewer do."""

STALE_SECONDS = 300.0
"""Age of a status above which an agent no longer counts: it may have lost its model or its connection."""


@dataclass(frozen=True, slots=True)
class _Place:
    word: str
    since_seconds: float


@dataclass
class CompactionLine:
    """The line as one agent sees it. `me` is that agent."""

    me: str
    _places: dict[str, _Place] = field(default_factory=dict)

    @property
    def holds_me(self) -> bool:
        """Whether the agent's own status has put it in line."""
        return self.me in self._places

    def observe(self, participant: str, status: str, *, at_seconds: float) -> None:
        """Note the status of a participant; one that neither compacts nor waits leaves the line."""
        word = StatusWord.read(status).word
        if word not in (COMPACTING, WAITING):
            self._places.pop(participant, None)
        elif participant not in self._places or self._places[participant].word != word:
            self._places[participant] = _Place(word, at_seconds)  # a place in line stays when its word changes

    def remove(self, participant: str) -> None:
        """Note that a participant left the space."""
        self._places.pop(participant, None)

    def restart(self, statuses: Mapping[str, str], *, at_seconds: float) -> None:
        """Begin again with the statuses of a welcome. They have no order, so ids decide."""
        self._places.clear()
        for participant in sorted(statuses):
            self.observe(participant, statuses[participant], at_seconds=at_seconds)

    def may_start(self, most: int, *, at_seconds: float) -> bool:
        """Return whether the agent may compact: fewer than `most` others compact, or wait before it."""
        ahead, is_before_me = 0, True
        for participant, place in self._places.items():
            if participant == self.me:
                is_before_me = False
            elif at_seconds - place.since_seconds <= STALE_SECONDS:
                ahead += is_before_me or place.word == COMPACTING
        return ahead < most
