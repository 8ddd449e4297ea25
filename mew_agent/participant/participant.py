"""A member of a space: joins, knows its peers, says and hears things, answers controls and tool calls.

The base of agents and the library's front door for people's own programs: `joining` its life, `saying` what it says
and asks, `hearing` who listens. Here is what becomes of what arrives. It knows no language model.
"""

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self, TypeVar, overload

import anyio
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.participant import Status
from mew_protocol.payloads.system import Welcome

from mew_agent.errors import ConfigError, GatewayError, TooLarge
from mew_agent.participant.answers.asking import Exchanges
from mew_agent.participant.client import Address
from mew_agent.participant.controls import Control, Controllable
from mew_agent.participant.discovery import Discovery
from mew_agent.participant.events import EventReader, PeerLevelChanged, SpaceEvent
from mew_agent.participant.in_flight import Underway
from mew_agent.participant.list_changes import ListChanges
from mew_agent.participant.listeners import Hearing
from mew_agent.participant.mcp_answers import failure
from mew_agent.participant.messaging import Saying
from mew_agent.participant.messaging import timestamp as timestamp
from mew_agent.participant.peers import Peer, PeerContext, Peers, who_left
from mew_agent.participant.proposals import PeerRequests, Waits
from mew_agent.participant.requests import Question, Questions
from mew_agent.participant.session import Joining
from mew_agent.tools.catalog import INTERNAL_ERROR, LocalOffers, Offers, RequestFailed
from mew_agent.tools.functions import Tool
from mew_agent.tools.resources import Resource, ResourceFunction

logger = logging.getLogger("mew_agent.participant.participant")

F = TypeVar("F", bound=Callable[..., Any])

PEER_RETURN_SECONDS = 10.0
"""How long after joining anew a peer that owes us an answer may take to come back, too."""


class _UnreadableWelcome(GatewayError):
    """We joined, and cannot read what we may."""


class Participant(Joining, Saying, Hearing):
    """Join a space: `async with Participant(gateway, space=..., id=..., token=...) as me`.

    Entering returns when the gateway has welcomed us; it raises `Unauthorized` or `NotConnected` otherwise. A
    connection lost later is joined again by itself.
    """

    def __init__(
        self,
        gateway: str,
        *,
        space: str,
        id: str,  # noqa: A002 - the wire's word
        token: str,
        conversation: Controllable | None = None,
        offers: Offers | None = None,
        first_connect_seconds: float = 10.0,
        discover: bool = False,
        waits: Waits | None = None,
    ) -> None:
        """`discover` asks every peer what it offers, unasked; `waits` is how long peers are waited for."""
        super().__init__(Address(gateway, space, id, token), first_connect_seconds=first_connect_seconds)
        self.id = id
        self.space = space
        self.peers = Peers(id)
        own = LocalOffers()
        self.toolbox, self.resources = own.toolbox, own.resources
        self.offers: Offers = own if offers is None else offers
        self._list_changes = None if offers is not None else ListChanges(self, own)
        self._underway = Underway()
        self.capabilities = CapabilitySet()
        self.control = Control(
            id, self.send, self._close_streams, self.aclose, conversation, noted=self._note_own_status
        )
        self.context = PeerContext()
        """How full our own context is, as we last told; nothing is known for those that have none."""
        self._questions = Questions(id)
        self.requests = PeerRequests(self, waits or Waits())
        self.discovery = Discovery(self, self.requests, is_on=discover)
        self.exchanges = Exchanges(self)
        self._reader = EventReader(self)
        self._joins_told = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """The participant that `MEW_GATEWAY`, `MEW_SPACE`, `MEW_PARTICIPANT_ID` and `MEW_TOKEN` name.

        `mew up` sets them for every program that it starts, `mew run` for one that you start by hand. Raises
        `ConfigError` naming those that are missing.
        """
        named = ("MEW_GATEWAY", "MEW_SPACE", "MEW_PARTICIPANT_ID", "MEW_TOKEN")
        missing = [name for name in named if not environ.get(name)]
        if missing:
            raise ConfigError(
                "environment",
                f"{', '.join(missing)} not set",
                "`mew up` sets them for its programs, `mew run COMMAND` for yours",
            )
        gateway, space, name, token = (environ[variable] for variable in named)
        return cls(gateway, space=space, id=name, token=token)

    async def take_part(self) -> None:
        """Join, stay until the connection ends for good, and leave: a whole program is `run(me.take_part)`.

        Raises what joining raises, and the `GatewayError` that ended it.
        """
        async with self:
            await self.run_forever()

    # -- offering ----------------------------------------------------------------------------------------

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(self, /, *, name: str | None = None, description: str | None = None) -> Callable[[F], F]: ...

    def tool(self, function: F | None = None, /, *, name: str | None = None, description: str | None = None) -> Any:
        """Decorator: offer a typed function as a tool to peers (and, in an agent, to its model).

        Its annotations become the schema, its docstring the description that models read; `name` and `description`
        say otherwise. It stays a function. Raises `TypeError` for arguments that cannot be described, and
        `ValueError` for a name that is taken.
        """

        def register(one: F) -> F:
            self.toolbox.add(Tool.of(one, name=name, description=description))
            return one

        return register if function is None else register(function)

    def resource(
        self, uri: str, *, name: str | None = None, description: str | None = None, mime_type: str | None = None
    ) -> Callable[[ResourceFunction], ResourceFunction]:
        """Decorator: offer what a function returns (text, bytes, or anything JSON can say) for peers to read.

        `uri` may have `{places}`, which are the function's arguments; a plain name becomes `resource:///name`.
        """

        def register(function: ResourceFunction) -> ResourceFunction:
            told = {"name": name, "description": description, "mime_type": mime_type}
            self.resources.add(Resource.of(function, uri, **told))
            return function

        return register

    # -- hooks -------------------------------------------------------------------------------------------

    async def receive(self, envelope: Envelope) -> None:
        """Hook for subclasses: an envelope arrived. Must return soon; called in order of arrival."""

    async def receive_frame(self, frame: StreamFrame) -> None:
        """Hook for subclasses: a stream frame arrived."""

    async def joined(self) -> None:
        """Hook for subclasses: the gateway welcomed us, first or again."""

    # -- inside ------------------------------------------------------------------------------------------

    async def _take(self, message: Envelope | StreamFrame) -> None:
        """Everything that arrives. Nothing a peer writes ends the connection; the first welcome must be readable."""
        try:
            if isinstance(message, StreamFrame):
                self.exchanges.receive_frame(message)
                await self.receive_frame(message)
            else:
                await self._take_envelope(message)
        except _UnreadableWelcome:
            raise
        except Exception:
            logger.exception("could not work on what arrived")

    async def _take_envelope(self, message: Envelope) -> None:
        known = self.peers.get(message.sender)
        is_about_members = message.kind in (kinds.SYSTEM_WELCOME, kinds.SYSTEM_PRESENCE)
        members = self.peers.snapshot() if is_about_members else {}
        was_welcomed = self._welcomed.is_set()
        reporter = self.peers.receive(message)
        self._questions.receive(message)
        if message.kind == kinds.SYSTEM_WELCOME:
            await self._welcome(message)
        elif self.control.is_for_us(message):
            self.start_soon(self.control.obey, message)
        elif message.kind == kinds.MCP_REQUEST and message.names(self.id) and message.sender != self.id:
            self.start_soon(self._answer_request, message)
        elif message.kind == kinds.MCP_NOTIFICATION:
            self._underway.receive(message)
        elif (gone := who_left(message)) is not None:
            self._questions.left(gone)
        self.discovery.receive(message)
        self.exchanges.receive(message)
        await self.receive(message)
        events: list[SpaceEvent] = []
        if is_about_members and was_welcomed:
            events += self._reader.moved(members, self.peers.snapshot())
        events += self._reader.told(message, reporter, known.context if known is not None else PeerContext())
        self._events.tell(message, *events)

    async def _welcome(self, message: Envelope) -> None:
        if not message.is_for(self.id):
            return
        try:
            welcome = read_payload(message, Welcome)
        except PayloadError as error:
            if not self._welcomed.is_set():
                raise _UnreadableWelcome(f"the gateway's welcome cannot be read: {error}") from None
            logger.warning("ignored a welcome: %s", error)
            return
        self.capabilities = CapabilitySet(welcome.you.capabilities)
        self._welcomed.set()
        if self._client.joins != self._joins_told:
            self._joins_told = self._client.joins
            self._questions.rejoined()
            self.exchanges.rejoined()
            if open_ones := self._questions.to_peers():
                self.start_soon(self._await_return, open_ones)
            await self.joined()

    async def _await_return(self, asked: tuple[Question, ...]) -> None:
        """Whoever owes us an answer may come back a little later than we did, but not never."""
        await anyio.sleep(PEER_RETURN_SECONDS)
        self._questions.missing(self.peers, asked)

    def _note_own_status(self, status: Status) -> None:
        """We are about to tell how full our context is."""
        before, self.context = self.context, PeerContext.of(status, timestamp())
        me = Peer(self.id, context=self.context)
        if (change := PeerLevelChanged.between(me, Peer(self.id, context=before))) is not None:
            self._events.tell(None, change)

    async def _answer_request(self, message: Envelope) -> None:
        payload = await self._underway.answer(message, self.offers, is_paused=self.control.is_paused)
        if payload is None:
            return
        answer = partial(self.send, kinds.MCP_RESPONSE, to=(message.sender,), correlation_id=(message.id,))
        try:
            await answer(payload)
        except TooLarge as error:
            await answer(
                failure(payload.get("id"), RequestFailed(INTERNAL_ERROR, f"the result cannot be sent: {error}"))
            )

    async def _close_streams(self, reason: str) -> None:
        """Hook for subclasses that own streams."""
