"""Staggers the compactions of a space: an agent with room for its next request waits while too many others compact.

Owns the queue of compacting and waiting agents, and this agent's wait between two tasks. All members receive statuses
in the gateway's order, so all agents compute the same queue. An urgent compaction, without which the next request would
not fit, never waits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.status_word import StatusWord, status_word

from mew_agent.participant.compaction_driver import CompactionDriver
from mew_agent.participant.participant import Participant

COMPACTING = "compacting"
WAITING = "compaction_waiting"
"""Status words of agents that compact, and that wait until fewer do."""

STALE_SECONDS = 300.0
"""Age of a status above which an agent no longer counts: it may have lost its model or its connection."""

ECHO_SECONDS = 5.0
"""How long an agent waits for the echo of the status that puts it in line."""

RECHECK_SECONDS = 30.0
"""How often an agent in line checks whether those before it have gone silent."""


@dataclass(frozen=True, slots=True)
class _Place:
    word: str
    since_seconds: float


@dataclass
class CompactionLine:
    """The queue as the agent `me` sees it."""

    me: str
    _places: dict[str, _Place] = field(default_factory=dict)

    @property
    def holds_me(self) -> bool:
        """Whether the agent's own status placed it in the queue."""
        return self.me in self._places

    def observe(self, participant: str, status: str, *, at_seconds: float) -> None:
        """Note a participant's status. One that neither compacts nor waits leaves the queue."""
        word = StatusWord.read(status).word
        if word not in (COMPACTING, WAITING):
            self._places.pop(participant, None)
        elif participant not in self._places or self._places[participant].word != word:
            self._places[participant] = _Place(word, at_seconds)  # a participant keeps its place when its word changes

    def remove(self, participant: str) -> None:
        """Note that a participant left the space."""
        self._places.pop(participant, None)

    def restart(self, statuses: Mapping[str, str], *, at_seconds: float) -> None:
        """Start over with the statuses of a welcome. They have no order, so ids decide."""
        self._places.clear()
        for participant in sorted(statuses):
            self.observe(participant, statuses[participant], at_seconds=at_seconds)

    def may_start(self, most: int, *, at_seconds: float) -> bool:
        """Return whether the agent may compact: fewer than `most` others compact or wait before it."""
        ahead, is_before_me = 0, True
        for participant, place in self._places.items():
            if participant == self.me:
                is_before_me = False
            elif at_seconds - place.since_seconds <= STALE_SECONDS:
                ahead += is_before_me or place.word == COMPACTING
        return ahead < most


class StaggeredCompactions:
    """Staggers the compactions of one agent and its peers. `most` may run at once; None: half of the agents."""

    def __init__(self, me: Participant, compacting: CompactionDriver, most: int | None) -> None:
        self._me = me
        self._compacting = compacting
        self._most = most
        self._line = CompactionLine(me.id)
        self._changed = anyio.Event()
        self._is_waiting = False
        compacting.may_begin = self.may_compact

    def restart(self) -> None:
        """Start with the statuses of a welcome."""
        statuses = {name: peer.context.status for name, peer in self._me.peers.items()}
        self._line.restart(statuses, at_seconds=anyio.current_time())

    def receive(self, envelope: Envelope) -> None:
        """Follow the statuses of all agents (its own included) and their departures."""
        if envelope.kind == kinds.PARTICIPANT_STATUS and not envelope.to:
            self._line.observe(envelope.sender, str(envelope.body.get("status")), at_seconds=anyio.current_time())
        elif envelope.kind == kinds.SYSTEM_PRESENCE and envelope.body.get("event") == "leave":
            self._line.remove(str((envelope.body.get("participant") or {}).get("id")))
        else:
            return
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def may_session_compact(self) -> bool:
        """Return whether few enough agents compact now. A session does not queue; it asks again later."""
        agents, most = self._agents_and_most()
        return agents <= most or self._line.may_start(most, at_seconds=anyio.current_time())

    async def may_compact(self) -> bool:
        """Return whether few enough agents compact now. If not, compact when this agent is next."""
        agents, most = self._agents_and_most()
        if agents <= most:
            return True
        if not self._line.holds_me:
            await self._me.control.announce(status_word(WAITING))
            with anyio.move_on_after(ECHO_SECONDS):  # some gateways do not echo
                while not self._line.holds_me:
                    await self._changed.wait()
        may_start = self._line.may_start(most, at_seconds=anyio.current_time())
        self._compacting.is_held_up = not may_start
        if not may_start and not self._is_waiting:
            self._is_waiting = True
            self._me.start_soon(self._compact_when_next)
        return may_start

    def _agents_and_most(self) -> tuple[int, int]:
        """Return the number of agents in the space, and how many may compact at once."""
        agents = 1 + sum(peer.context.report is not None for peer in self._me.peers.values())
        return agents, self._most or max(1, agents // 2)

    async def _compact_when_next(self) -> None:
        """Wait in the queue, and compact between two tasks. A new task ends the wait."""
        compacting = self._compacting
        try:
            while self._is_in_line():
                changed = self._changed  # read before the check, so that no change is missed
                await compacting.run_due()
                with anyio.move_on_after(RECHECK_SECONDS if self._is_in_line() else 0):
                    await changed.wait()
        finally:
            self._is_waiting = compacting.is_held_up = False
        if self._line.holds_me and not compacting.is_running:
            await self._me.control.announce()

    def _is_in_line(self) -> bool:
        return self._compacting.is_held_up and self._compacting.is_due()
