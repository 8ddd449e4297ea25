"""What peers offer: asked of each when it joins, one after the other, asked again when that may have changed.

Owns when a peer is asked, how often, and what its silence means. What it said is kept with the peer (`Peer.tools`);
how a request travels is `proposals`' matter.
"""

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio

from mew_agent.asking.peer_offers import Unreadable, prompts_of, read_page, resources_of, tools_of
from mew_agent.asking.proposals import Waits
from mew_agent.errors import BadAnswer, MewAgentError, NotPermitted, PeerAbsent, PeerError, PeerFailed, Rejected
from mew_agent.offers.local import METHOD_NOT_FOUND
from mew_agent.peers import Peer, who_left
from protocol import kinds
from protocol.capability import CapabilitySet
from protocol.envelope import Draft, Envelope

if TYPE_CHECKING:
    from mew_agent.participant import Participant

logger = logging.getLogger("mew_agent.asking.discovery")

MAX_PAGES: Final = 50
CHANGES: Final[Mapping[str, str]] = {
    "notifications/tools/list_changed": "tools/list",
    "notifications/resources/list_changed": "resources/list",
    "notifications/prompts/list_changed": "prompts/list",
}

Listed = Callable[[str, tuple[Mapping[str, Any], ...]], tuple[Any, ...]]
_READERS: Final[Mapping[str, Listed]] = {"tools": tools_of, "resources": resources_of, "prompts": prompts_of}


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
    looked: anyio.Event = field(default_factory=anyio.Event)
    """Set when the peer was asked for the first time, whatever it answered."""


class Discovery:
    """Asks the peers of one participant. Where `is_on` is False, only those that `discover` is called for."""

    def __init__(self, me: "Participant", *, is_on: bool, pace: Pace | None = None) -> None:
        self._me = me
        self.is_on = is_on
        self.pace = pace or Pace()
        self._known: dict[str, _Known] = {}
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
            case kinds.MCP_NOTIFICATION if envelope.body.get("method") in CHANGES:
                if envelope.is_for(me.id) and (self.is_on or envelope.sender in self._known):
                    self._start(envelope.sender)
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
        """Ask a peer now. Raises what `Participant.request` raises when it does not tell its tools."""
        if peer not in self._me.peers:
            raise PeerAbsent(peer)
        known = self._known.setdefault(peer, _Known())
        try:
            await self._ask(peer, known)
        finally:
            known.looked.set()
        return self._me.peers[peer]

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
        """Whether a peer may send responses at all; gateways tell everybody's capabilities."""
        member = self._me.peers.get(peer)
        if member is None:
            return False
        response = Draft(kind=kinds.MCP_RESPONSE, payload={"result": {}}, to=(self._me.id,))
        return not member.capabilities or CapabilitySet(member.capabilities).allows(response)

    async def _look(self, peer: str, known: _Known) -> None:
        """Ask until there is an answer, a refusal, or no patience left."""
        try:
            if not self._me.requests.may_ask(peer, "tools/list"):
                known.is_permitted = False
                return
            await anyio.sleep(random.random() * self.pace.stagger_seconds)  # noqa: S311 - no secret
            again = True
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
                by_request = self._me.requests.may_request(peer, "tools/list")
                logger.info("'%s' did not tell what it offers: %s", peer, error)
                if pause_seconds is None or not by_request:  # nobody is asked to decide twice
                    return
            finally:
                known.looked.set()  # who waits for a first answer does not wait for a second
            await anyio.sleep(pause_seconds)
            if self._known.get(peer) is not known:
                return

    async def _ask(self, peer: str, known: _Known) -> None:
        """Ask for tools, and then for what else there is. Raises when the tools are not told."""
        known.asked_at = anyio.current_time()
        tools = await self._list(peer, "tools")
        known.has_nothing = not tools
        self._tell(peer, known, tools=tools)
        known.looked.set()
        for name in ("resources", "prompts"):
            if not self._me.requests.may_request(peer, f"{name}/list"):
                continue
            try:
                self._tell(peer, known, **{name: await self._list(peer, name)})
            except PeerError as error:
                logger.debug("'%s' does not tell its %s: %s", peer, name, error)

    def _tell(self, peer: str, known: _Known, **offers: tuple[Any, ...]) -> None:
        if self._known.get(peer) is known:
            self._me.peers.offers(peer, **offers)

    async def _list(self, peer: str, name: str) -> tuple[Any, ...]:
        """The whole list; a peer that does not know the method has none. Raises `PeerError` and `NotPermitted`."""
        entries: list[Mapping[str, Any]] = []
        cursor: str | None = None
        waits = Waits(self.pace.answer_seconds, self._me.requests.waits.decision_seconds)
        for _ in range(MAX_PAGES):
            params = None if cursor is None else {"cursor": cursor}
            try:
                result = await self._me.requests.request(peer, f"{name}/list", params, waits=waits)
                page = read_page(result, name)
            except PeerFailed as error:
                if error.code != METHOD_NOT_FOUND:
                    raise
                break
            except Unreadable as error:
                raise BadAnswer(peer, str(error)) from None
            entries += page.entries
            if page.cursor is None or page.cursor == cursor:
                break
            cursor = page.cursor
        return _READERS[name](peer, tuple(entries))

    def _slot(self) -> anyio.CapacityLimiter:
        if self._slots is None:
            self._slots = anyio.CapacityLimiter(self.pace.at_once)
        return self._slots
