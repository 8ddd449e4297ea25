"""Discovers the offers of peers: asks each peer when it joins, and again when the answer may have changed.

Decides when and how often a peer is asked, and handles missing answers. Tools are asked for automatically, other lists
on demand. Lists that a peer sends to other participants are also used, so that a large space is not flooded with
requests. The answers are stored in `Peer.tools`, `resources` and `prompts`.
"""

import logging
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import anyio
from mew_listener.bounded_dict import BoundedDict, FairDict
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import text_at, value_at

from mew_agent.errors import BadAnswer, MewAgentError, NotPermitted, PeerAbsent, PeerError, PeerFailed, Rejected
from mew_agent.participant.mcp_client import McpClient, PeerCall, Timeouts
from mew_agent.participant.messenger import Messenger
from mew_agent.participant.peers import Peer
from mew_agent.tools.catalog import METHOD_NOT_FOUND
from mew_agent.tools.peer_offers import (
    LIST_CHANGED,
    InvalidList,
    PeerList,
    PeerResource,
)

logger = logging.getLogger(__name__)

LIST_CHANGES: Final = {method: name for name, method in LIST_CHANGED.items()}
CONCURRENT_REQUESTS: Final = 4
MAX_PAGES: Final = 50
"""How many pages of one list are read."""

MAX_UNANSWERED: Final = 1_000
"""How many peers that did not answer are remembered."""

MAX_OBSERVED_REQUESTS: Final = 1_000
"""How many requests of others are remembered until they are answered."""

LISTS: Final = {
    "tools": "tools/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
    "prompts": "prompts/list",
}
"""The lists of MCP by their key in an answer, with the method that requests each."""


class Pace(NamedTuple):
    """The timing of requests to peers, in seconds.

    Each request first waits for a random part of `stagger_seconds` per `stagger_peers` peers. So only a few members ask
    a new peer, and the others use its answer. A silent peer is asked again after each of `retry_seconds`, then after
    `time_to_live_seconds`. An answer is valid for `time_to_live_seconds`.
    """

    stagger_seconds: float = 0.5
    stagger_peers: int = 10
    answer_seconds: float = 15.0
    retry_seconds: tuple[float, ...] = (2.0, 10.0)
    time_to_live_seconds: float = 300.0


@dataclass(eq=False)
class _Inquiry:
    """The state of the requests to one peer. A peer that joins again gets a new one."""

    is_running: bool = False
    is_repeat_wanted: bool = False
    is_permitted: bool = True
    has_no_tools: bool = False
    asked_at: float | None = None
    answers: int = 0
    """How many times the list of tools was received, in the peer's answer to us or to another participant."""

    other_lists: set[str] = field(default_factory=set)
    """The other lists that the peer has: `resources`, `prompts`."""

    tried: anyio.Event = field(default_factory=anyio.Event)
    """Set after the first attempt, with any result."""


class Discovery:
    """Asks the peers of one participant. If `is_on` is False, it asks only in `discover` and `resources`."""

    received_kinds = (
        *(kinds.SYSTEM_WELCOME, kinds.SYSTEM_PRESENCE),
        *(kinds.MCP_NOTIFICATION, kinds.MCP_REQUEST, kinds.MCP_RESPONSE),
    )

    def __init__(self, messenger: Messenger, mcp: McpClient, *, is_on: bool) -> None:
        self._messenger = messenger
        self._peers = messenger.peers
        self._mcp = mcp
        self.is_on = is_on
        self.pace = Pace()
        self.on_tools_changed: Callable[[], None] = lambda: None
        """Called when a peer's list of tools has become known or another one."""
        self._inquiries: dict[str, _Inquiry] = {}
        self._unanswered: BoundedDict[str, None] = BoundedDict(MAX_UNANSWERED)
        """Peers that were waited for and did not answer; they delay nothing more until they do, also if they rejoin."""
        self._observed = ObservedListings()
        self._limiter = anyio.CapacityLimiter(CONCURRENT_REQUESTS)

    def receive(self, envelope: Envelope) -> None:
        """Follow joining and leaving peers, and their lists."""
        me = self._messenger.id
        match envelope.kind:
            case kinds.SYSTEM_WELCOME if envelope.is_for(me):
                self._ask_after_welcome()
            case kinds.SYSTEM_PRESENCE if envelope.is_for(me):
                self._follow(text_at(envelope.body, "participant", "id"), envelope.body.get("event"))
            case kinds.MCP_NOTIFICATION if envelope.is_for(me):
                if (changed := LIST_CHANGES.get(str(envelope.body.get("method")))) is not None:
                    self._list_changed(envelope.sender, changed)
            case kinds.MCP_REQUEST if self.is_on and envelope.sender != me:
                self._observed.add_request(envelope)
            case kinds.MCP_RESPONSE:
                for name, listing in self._observed.listings_in(envelope):
                    if name in self._inquiries:
                        self._store_tools(name, self._inquiries[name], listing)
            case _:
                return

    async def wait_for_first_answers(self, wait_seconds: float, *only: str) -> None:
        """Wait for peers that never answered, each at most once; ask again where answers are outdated.

        Waits for all automatically asked peers, or for those in `only`, which are asked if necessary.
        """
        for name in only:
            if name not in self._inquiries:
                self._start(name)
        asked_before = anyio.current_time() - self.pace.time_to_live_seconds
        for name, inquiry in tuple(self._inquiries.items()) if self.is_on else ():
            if inquiry.asked_at is not None and inquiry.asked_at < asked_before and not inquiry.has_no_tools:
                self._start(name)
        waiting = {
            name: inquiry
            for name, inquiry in self._inquiries.items()
            if name not in self._unanswered and (not only or name in only)
        }
        with anyio.move_on_after(wait_seconds):
            for inquiry in waiting.values():
                await inquiry.tried.wait()
        for name, inquiry in waiting.items():
            inquiry.tried.set()
            if not inquiry.answers:
                self._unanswered[name] = None

    async def discover(self, peer: str) -> Peer:
        """Ask a peer for all its lists now. Raises the errors of `Participant.request` without a list of tools."""
        if peer not in self._peers:
            raise self._messenger.peer_absent(peer)
        inquiry = self._inquiries.setdefault(peer, _Inquiry())
        try:
            await self._ask_for_tools(peer, inquiry)
        finally:
            inquiry.tried.set()
        for name in ("resources", "prompts"):
            if self._mcp.may_request(PeerCall(peer, f"{name}/list")):
                await self._ask_for_other_list(peer, name)
        if peer not in self._peers:  # it left meanwhile
            raise PeerAbsent(peer, had_been_asked=True)
        return self._peers[peer]

    async def resources(self, peer: str) -> tuple[PeerResource, ...]:
        """Ask a peer for its resources and templates now. Raises the errors of `Participant.request`."""
        resources: tuple[PeerResource, ...] = (await self.fetch(peer, "resources")).offers
        try:
            templates = (await self.fetch(peer, "resourceTemplates")).offers
        except PeerError as error:
            logger.debug("'%s' did not list its resource templates: %s", peer, error)
            templates = ()
        self._peers.set_offers(peer, resources=resources + templates)
        return resources + templates

    def with_resources(self) -> tuple[str, ...]:
        """Return the peers with known resources that we may request, by name."""
        hinted = {name for name, inquiry in self._inquiries.items() if "resources" in inquiry.other_lists}
        known, may_ask = sorted(self._peers), self._mcp.may_ask_with_any_arguments
        having = (name for name in known if name in hinted or self._peers[name].resources)
        return tuple(name for name in having if may_ask(PeerCall(name, "resources/read", {})))

    def _follow(self, peer: str, event: object) -> None:
        """Forget a peer that left; ask a peer that joined for its tools."""
        if event == "join" and peer in self._peers and self.is_on:
            self._forget(peer)
            self._start(peer)
        elif event == "leave":
            self._forget(peer)

    def _ask_after_welcome(self) -> None:
        """Ask new peers, and peers that a welcome's new capabilities allow us to ask."""
        for name in set(self._inquiries) - set(self._peers):
            self._forget(name)
        for name in self._peers if self.is_on else ():
            inquiry = self._inquiries.get(name)
            is_unknown = inquiry is None or (not inquiry.is_running and self._peers[name].tools is None)
            if is_unknown or (inquiry is not None and not inquiry.is_permitted):
                self._start(name)

    def _list_changed(self, name: str, changed: str) -> None:
        """Ask for tools again. Ask for another list only if it was requested before."""
        peer, inquiry = self._peers.get(name), self._inquiries.get(name)
        if peer is None or not (self.is_on or inquiry is not None):
            return
        if changed == "tools":
            self._start(name)
            return
        if inquiry is not None:
            inquiry.other_lists.add(changed)
            self._peers.version += 1
        if (peer.resources if changed == "resources" else peer.prompts) is not None:
            self._messenger.session.start_soon(self._ask_for_other_list, name, changed)

    def _forget(self, name: str) -> None:
        inquiry = self._inquiries.pop(name, None)
        if inquiry is not None:
            inquiry.tried.set()

    def _start(self, name: str) -> None:
        inquiry, peer = self._inquiries.get(name), self._peers.get(name)
        if inquiry is not None and inquiry.is_running:
            inquiry.is_repeat_wanted = True
            return
        if peer is None or not peer.may_send(kinds.MCP_RESPONSE, {"result": {}}, self._messenger.id):
            return  # the peer may not answer
        if inquiry is None:
            inquiry = self._inquiries[name] = _Inquiry()
        inquiry.is_running, inquiry.has_no_tools, inquiry.is_permitted = True, False, True
        self._messenger.session.start_soon(self._run, name, inquiry)

    async def _run(self, name: str, inquiry: _Inquiry) -> None:
        try:
            call = PeerCall(name, "tools/list")
            if not (self._mcp.may_request(call) or self._mcp.may_propose(call)):
                inquiry.is_permitted = False
                return
            answers_before, again = inquiry.answers, True
            while again:
                longest_seconds = self.pace.stagger_seconds * math.ceil(len(self._peers) / self.pace.stagger_peers)
                await anyio.sleep(random.random() * longest_seconds)  # noqa: S311 - no secret
                is_answered = inquiry.answers != answers_before and not inquiry.is_repeat_wanted
                if is_answered or self._inquiries.get(name) is not inquiry:
                    break
                inquiry.is_repeat_wanted = False
                answers_before = inquiry.answers
                await self._ask_with_retries(name, inquiry, answers_before)
                again = inquiry.is_repeat_wanted
        finally:
            inquiry.is_running = False
            inquiry.tried.set()

    async def _ask_with_retries(self, name: str, inquiry: _Inquiry, answers_before: int) -> None:
        for pause_seconds in (*self.pace.retry_seconds, None):
            try:
                async with self._limiter:
                    # An answer to another participant may have arrived while earlier requests waited.
                    if self._inquiries.get(name) is inquiry and inquiry.answers == answers_before:
                        await self._ask_for_tools(name, inquiry)
                return
            except (PeerAbsent, Rejected, NotPermitted) as error:
                logger.info("cannot list the tools of '%s': %s", name, error)
                inquiry.is_permitted = not isinstance(error, NotPermitted)
                return
            except MewAgentError as error:
                logger.info("'%s' did not list its tools: %s", name, error)
                if pause_seconds is None or not self._mcp.may_request(PeerCall(name, "tools/list")):
                    return  # never propose twice: people may need to decide about it
            finally:
                inquiry.tried.set()  # only the first attempt may delay an answer
            await anyio.sleep(pause_seconds)

    async def _ask_for_tools(self, name: str, inquiry: _Inquiry) -> None:
        inquiry.asked_at = anyio.current_time()
        self._store_tools(name, inquiry, await self.fetch(name, "tools"))

    async def _ask_for_other_list(self, peer: str, name: str) -> None:
        """Ask for a list that many peers lack; a missing answer is no failure."""
        try:
            if name == "resources":
                await self.resources(peer)
            else:
                self._peers.set_offers(peer, **{name: (await self.fetch(peer, name)).offers})
        except PeerError as error:
            logger.debug("'%s' did not list its %s: %s", peer, name, error)

    def _store_tools(self, name: str, inquiry: _Inquiry, listing: PeerList) -> None:
        inquiry.asked_at = anyio.current_time()
        inquiry.answers += 1
        self._unanswered.pop(name, None)
        tools = listing.offers
        inquiry.has_no_tools = not tools
        inquiry.other_lists |= listing.others
        known = self._peers.get(name)
        if self._inquiries.get(name) is inquiry and known is not None:  # else it left or joined again
            self._peers.set_offers(name, tools=tools, tools_left_out=listing.left_out)
            # The first list of a peer without tools changes nothing.
            if (known.tools or (), known.tools_left_out) != (tools, listing.left_out):
                self.on_tools_changed()
        inquiry.tried.set()

    async def fetch(self, peer: str, name: str) -> PeerList:
        """Fetch all pages of a peer's list (a key of `LISTS`), each within `pace.answer_seconds`.

        A peer that does not know the method has an empty list. Raises `PeerError` and `NotPermitted`.
        """
        found = PeerList(peer, name)
        cursor: str | None = None
        timeouts = Timeouts(self.pace.answer_seconds, self._mcp.timeouts.decision_seconds)
        for _ in range(MAX_PAGES):
            params = None if cursor is None else {"cursor": cursor}
            try:
                following = found.add(await self._mcp.request(PeerCall(peer, LISTS[name], params), timeouts))
            except PeerFailed as error:
                if error.code != METHOD_NOT_FOUND:
                    raise
                break
            except InvalidList as error:
                raise BadAnswer(peer, str(error)) from None
            if following in (None, cursor) or found.is_full:
                break
            cursor = following
        return found


class ObservedListings:
    """Finds lists of tools that peers send to other participants. Ignores lists of several pages."""

    def __init__(self) -> None:
        self._asked: FairDict[str, tuple[str, str | None]] = FairDict(MAX_OBSERVED_REQUESTS, lambda _, one: one[0])
        """Sender and recipient of each request, by its id."""

    def add_request(self, request: Envelope) -> None:
        """Remember a request of another participant if it asks one peer for its tools."""
        is_first_page = value_at(request.body, "params", "cursor") is None
        if request.body.get("method") == "tools/list" and is_first_page and len(request.addressees) == 1:
            # An id that another request also uses is ambiguous: the answer may belong to that request.
            asked = None if request.id in self._asked else request.addressees[0]
            self._asked[request.id] = request.sender, asked

    def listings_in(self, response: Envelope) -> Iterator[tuple[str, PeerList]]:
        """Yield the complete lists in a response, each with the peer that sent it."""
        for name in response.correlation_ids:
            if self._asked.get(name, ("", None))[1] != response.sender:
                continue
            del self._asked[name]
            found = PeerList(response.sender, "tools")
            try:
                cursor = found.add(response.body.get("result"))
            except InvalidList:
                return
            if cursor is None:
                yield response.sender, found
