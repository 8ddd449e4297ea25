"""What peers offer: asked of each when it joins, one after the other, asked again when that may have changed.

Owns when a peer is asked, how often, and what its silence means. Tools are asked for unasked, everything else on
demand; a list that somebody else was just told counts, too, so that a large space is not asked by everybody at once.
What peers said is kept with them (`Peer.tools`); how a request travels is `proposals`' matter.
"""

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope

from mew_agent.errors import MewAgentError, NotPermitted, PeerAbsent, PeerError, Rejected
from mew_agent.participant.messenger import Voice
from mew_agent.participant.pagination import listing_of
from mew_agent.participant.passive_discovery import Overhearing
from mew_agent.participant.peers import Peer, who_left
from mew_agent.participant.proposals import PeerRequests
from mew_agent.tools.peer_offers import Listing, PeerResource

logger = logging.getLogger("mew_agent.participant.discovery")

CHANGES: Final[Mapping[str, str]] = {
    f"notifications/{name}/list_changed": name for name in ("tools", "resources", "prompts")
}


@dataclass(frozen=True, slots=True)
class Pace:
    """How peers are asked. All times in seconds.

    Each waits a random part of `stagger_seconds` first, so that a space that wakes up does not ask everything at once;
    `at_once` are asked at the same time. A peer that does not answer within `answer_seconds` is asked again after each
    of `retry_seconds`, then not before `time_to_live_seconds` are over, which is also how long an answer counts.
    """

    stagger_seconds: float = 0.5
    answer_seconds: float = 15.0
    retry_seconds: tuple[float, ...] = (2.0, 10.0)
    time_to_live_seconds: float = 300.0
    at_once: int = 4


@dataclass(eq=False)
class _Known:
    """What became of asking one peer. A new one replaces it when the peer joins anew."""

    is_busy: bool = False
    is_wanted_again: bool = False
    is_permitted: bool = True
    has_nothing: bool = False
    asked_at: float | None = None
    answers: int = 0
    """How often its list of tools was learnt, from it or from what it told somebody else."""

    others: set[str] = field(default_factory=set)
    """What else it said that it has: `resources`, `prompts`."""

    looked: anyio.Event = field(default_factory=anyio.Event)
    """Set when the peer was asked for the first time, whatever it answered."""


class Discovery:
    """Asks the peers of one participant. Where `is_on` is False, only those that `discover` is called for."""

    def __init__(self, me: Voice, requests: PeerRequests, *, is_on: bool, pace: Pace | None = None) -> None:
        self._me = me
        self._requests = requests
        self.is_on = is_on
        self.pace = pace or Pace()
        self._known: dict[str, _Known] = {}
        self._overhearing = Overhearing()
        self._slots: anyio.CapacityLimiter | None = None

    # -- what happens ------------------------------------------------------------------------------------

    def receive(self, envelope: Envelope) -> None:
        """An envelope arrived, and `peers` have taken it in."""
        me = self._me
        match envelope.kind:
            case kinds.SYSTEM_WELCOME if envelope.is_for(me.id):
                self._welcomed()
            case kinds.SYSTEM_PRESENCE:
                gone = who_left(envelope)
                if gone is not None:
                    self._forget(gone)
                    return
                participant = envelope.body.get("participant")
                name = participant.get("id") if isinstance(participant, Mapping) else None
                if self.is_on and envelope.body.get("event") == "join" and name in me.peers:
                    self._start(str(name), anew=True)
            case kinds.MCP_NOTIFICATION if envelope.body.get("method") in CHANGES and envelope.is_for(me.id):
                self._list_changed(envelope.sender, CHANGES[str(envelope.body.get("method"))])
            case kinds.MCP_REQUEST if self.is_on and envelope.sender != me.id:
                self._overhearing.request(envelope)
            case kinds.MCP_RESPONSE:
                for peer, listing in self._overhearing.response(envelope):
                    self._overheard(peer, listing)
            case _:
                return

    async def settle(self, wait_seconds: float) -> None:
        """Wait a little for peers that were never asked before, and ask those again whose answer has become old.

        Who has been waited for in vain is not waited for again.
        """
        now = anyio.current_time()
        for name, known in tuple(self._known.items()):
            is_old = known.asked_at is not None and now - known.asked_at > self.pace.time_to_live_seconds
            if self.is_on and is_old and not known.has_nothing:
                self._start(name)
        waiting = tuple(self._known.values())
        with anyio.move_on_after(wait_seconds):
            for known in waiting:
                await known.looked.wait()
        for known in waiting:
            known.looked.set()

    async def discover(self, peer: str) -> Peer:
        """Ask a peer for everything now. Raises what `Participant.request` raises when it does not tell its tools."""
        if peer not in self._me.peers:
            raise PeerAbsent(peer)
        known = self._known.setdefault(peer, _Known())
        try:
            await self._ask(peer, known)
        finally:
            known.looked.set()
        for name in ("resources", "prompts"):
            if self._requests.may_request(peer, f"{name}/list"):
                await self._ask_if_it_tells(peer, name)
        return self._me.peers[peer]

    async def resources(self, peer: str) -> tuple[PeerResource, ...]:
        """Ask a peer for its resources and templates now. Raises what `Participant.request` raises."""
        resources: tuple[PeerResource, ...] = (await self._list(peer, "resources")).offers
        try:
            method, key = "resources/templates/list", "resourceTemplates"
            templates = (await self._list(peer, "resources", method=method, key=key)).offers
        except PeerError as error:
            logger.debug("'%s' does not tell its templates: %s", peer, error)
            templates = ()
        self._me.peers.offers(peer, resources=resources + templates)
        return resources + templates

    def with_resources(self) -> tuple[str, ...]:
        """The peers that said that they have resources, by name."""
        me = self._me
        hinted = {name for name, known in self._known.items() if "resources" in known.others}
        return tuple(sorted(name for name in me.peers if name in hinted or me.peers[name].resources))

    # -- inside ------------------------------------------------------------------------------------------

    def _welcomed(self) -> None:
        """Who is here is known; what we may do may have changed."""
        for name in set(self._known) - set(self._me.peers):
            self._forget(name)
        if not self.is_on:
            return
        for name in self._me.peers:
            known = self._known.get(name)
            if known is None or not known.is_permitted or (not known.is_busy and self._me.peers[name].tools is None):
                self._start(name)

    def _list_changed(self, peer: str, what: str) -> None:
        """A peer said that a list of its changed: tools are asked for again, other lists if they were asked for."""
        member, known = self._me.peers.get(peer), self._known.get(peer)
        if member is None or not (self.is_on or known is not None):
            return
        if what == "tools":
            self._start(peer)
            return
        if known is not None:
            known.others.add(what)
        if (member.resources if what == "resources" else member.prompts) is not None:
            self._me.start_soon(self._ask_if_it_tells, peer, what)

    def _overheard(self, peer: str, listing: Listing) -> None:
        """A peer told somebody else its tools."""
        known = self._known.get(peer)
        if known is not None:
            self._learnt(peer, known, listing)

    def _forget(self, peer: str) -> None:
        known = self._known.pop(peer, None)
        if known is not None:
            known.looked.set()

    def _start(self, peer: str, *, anew: bool = False) -> None:
        known = self._known.get(peer)
        if anew and known is not None:
            self._forget(peer)
            known = None
        if known is not None and known.is_busy:
            known.is_wanted_again = True
            return
        if peer == self._me.id or not self._can_answer(peer):
            return
        if known is None:
            known = self._known[peer] = _Known()
        known.is_busy, known.has_nothing, known.is_permitted = True, False, True
        self._me.start_soon(self._look, peer, known)

    def _can_answer(self, peer: str) -> bool:
        """Whether a peer may send responses at all."""
        member = self._me.peers.get(peer)
        return member is not None and member.may_send(kinds.MCP_RESPONSE, {"result": {}}, self._me.id)

    async def _look(self, peer: str, known: _Known) -> None:
        """Ask until there is an answer, a refusal, or no patience left."""
        try:
            if not self._requests.may_ask(peer, "tools/list"):
                known.is_permitted = False
                return
            answers_before = known.answers
            await anyio.sleep(random.random() * self.pace.stagger_seconds)  # noqa: S311 - no secret
            again = known.answers == answers_before or known.is_wanted_again
            while again and self._known.get(peer) is known:
                known.is_wanted_again = False
                await self._ask_patiently(peer, known)
                again = known.is_wanted_again
        finally:
            known.is_busy = False
            known.looked.set()

    async def _ask_patiently(self, peer: str, known: _Known) -> None:
        for pause_seconds in (*self.pace.retry_seconds, None):
            try:
                async with self._slot():
                    if self._known.get(peer) is known:
                        await self._ask(peer, known)
                return
            except (PeerAbsent, Rejected, NotPermitted) as error:
                logger.info("'%s' does not tell what it offers: %s", peer, error)
                known.is_permitted = not isinstance(error, NotPermitted)
                return
            except MewAgentError as error:
                by_request = self._requests.may_request(peer, "tools/list")
                logger.info("'%s' did not tell what it offers: %s", peer, error)
                if pause_seconds is None or not by_request:  # nobody is asked to decide twice
                    return
            finally:
                known.looked.set()  # who waits for a first answer does not wait for a second
            await anyio.sleep(pause_seconds)
            if self._known.get(peer) is not known:
                return

    async def _ask(self, peer: str, known: _Known) -> None:
        """Ask for tools. Raises when they are not told."""
        known.asked_at = anyio.current_time()
        self._learnt(peer, known, await self._list(peer, "tools"))

    async def _ask_if_it_tells(self, peer: str, name: str) -> None:
        """Ask for something else than tools, which many peers do not know."""
        try:
            if name == "resources":
                await self.resources(peer)
            else:
                self._me.peers.offers(peer, **{name: (await self._list(peer, name)).offers})
        except PeerError as error:
            logger.debug("'%s' does not tell its %s: %s", peer, name, error)

    def _learnt(self, peer: str, known: _Known, listing: Listing) -> None:
        """A peer's tools are known, if it did not join anew meanwhile."""
        known.asked_at = anyio.current_time()
        known.answers += 1
        known.has_nothing = not listing.offers
        known.others |= listing.others
        if self._known.get(peer) is known:
            self._me.peers.offers(peer, tools=listing.offers)
        known.looked.set()

    async def _list(self, peer: str, name: str, *, method: str = "", key: str = "") -> Listing:
        return await listing_of(self._requests, peer, name, self.pace.answer_seconds, method=method, key=key)

    def _slot(self) -> anyio.CapacityLimiter:
        if self._slots is None:
            self._slots = anyio.CapacityLimiter(self.pace.at_once)
        return self._slots
