"""A participant of a space: the public face of everything in this package.

Owns how the parts fit together: `session` (connection and tasks), `messenger` (sends), `dispatcher` (passes on what
arrives), and the parts that follow what arrives: `control`, `mcp_server`, `discovery`, `answers`, `events`. Does not
know language models; `Agent` adds one.
"""

import os
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from pydantic import BaseModel

from mew_agent.errors import ConfigError, refuse_misspelled
from mew_agent.participant.answers.agent_answers import INACTIVITY_SECONDS, AgentAnswers, AnswerStream
from mew_agent.participant.client import SEND_TIMEOUT_SECONDS, Client, Credentials
from mew_agent.participant.controls import Control, Controllable
from mew_agent.participant.discovery import Discovery
from mew_agent.participant.dispatcher import Dispatcher
from mew_agent.participant.events import (
    ChatReceived,
    ContextReported,
    EventEmitter,
    PeerJoined,
    PeerLeft,
    PeerLevelChanged,
    ProposalClosed,
    ProposalMade,
)
from mew_agent.participant.listeners import Listeners, call_handler
from mew_agent.participant.mcp_client import McpClient, Timeouts
from mew_agent.participant.mcp_server import McpServer
from mew_agent.participant.messenger import Messenger
from mew_agent.participant.peer_archive import PeerArchive
from mew_agent.participant.peer_controls import PeerControls
from mew_agent.participant.peers import Peer, PeerContext, Peers
from mew_agent.participant.session import SpaceSession
from mew_agent.tools.catalog import LocalOffers, Offers
from mew_agent.tools.functions import Tool
from mew_agent.tools.resources import Resource, ResourceFunction
from mew_agent.tools.results import ToolResult

ENVIRONMENT = ("MEW_GATEWAY", "MEW_SPACE", "MEW_PARTICIPANT_ID", "MEW_TOKEN")

E = TypeVar("E")
F = TypeVar("F", bound=Callable[..., Any])
EnvelopeHandler = TypeVar("EnvelopeHandler", bound=Callable[[Envelope], object])
ChatHandler = TypeVar("ChatHandler", bound=Callable[[ChatReceived], object])
PeerHandler = TypeVar("PeerHandler", bound=Callable[[Peer], object])
ContextHandler = TypeVar("ContextHandler", bound=Callable[[Peer, PeerContext], object])
LevelHandler = TypeVar("LevelHandler", bound=Callable[[Peer, PeerContext, PeerContext], object])
ProposalHandler = TypeVar("ProposalHandler", bound=Callable[[ProposalMade], object])
ProposalClosedHandler = TypeVar("ProposalClosedHandler", bound=Callable[[ProposalClosed], object])


class Participant(PeerControls, PeerArchive):
    """Join a space: `async with Participant(gateway, space=..., id=..., token=...) as me`.

    Entering returns when the gateway has welcomed us; it raises `Unauthorized`, `CertificateRejected` or `NotConnected`
    otherwise. A connection that is lost later is restored automatically.
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
        timeouts: Timeouts | None = None,
        ca_file: str | Path | None = None,
    ) -> None:
        """`gateway` is a ws://, wss://, http:// or https:// URL; raises `ConfigError` for anything else.

        `conversation` is what controls act on. `offers` replaces our own tools and resources. `discover` asks every
        peer automatically for its tools; `timeouts` apply to MCP requests. `ca_file` names a PEM file of certificates
        to trust besides those of the system (default: the file in `MEW_CA_FILE`).
        """
        self.id = id
        self.space = space
        own = LocalOffers()
        self.toolbox, self.resources = own.toolbox, own.resources
        self.listeners = Listeners()
        client = Client(Credentials(gateway, space, id, token, ca_file), first_connect_seconds=first_connect_seconds)
        self.session = SpaceSession(client, self.listeners)
        super().__init__(Messenger(id, self.session))
        self.events = EventEmitter(self.messenger, self.listeners)
        self.control = Control(self.messenger, self.events, hooks=self, conversation=conversation)
        self.mcp = McpClient(self.messenger, timeouts or Timeouts())
        self.mcp_server = McpServer(self.messenger, offers or own)
        self.discovery = Discovery(self.messenger, self.mcp, is_on=discover)
        self.answers = AgentAnswers(self.messenger)
        parts = (self.control, self.mcp_server, self.discovery, self.answers)
        self.dispatcher = Dispatcher(self.messenger, parts, hooks=self, events=self.events)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """The participant that `MEW_GATEWAY`, `MEW_SPACE`, `MEW_PARTICIPANT_ID` and `MEW_TOKEN` describe.

        `mew up` sets them for each program that it starts, `mew run` for one that you start. `environ` defaults to the
        process environment. Raises `ConfigError` naming the variables that are missing or misspelled.
        """
        values = os.environ if environ is None else environ
        missing = [name for name in ENVIRONMENT if not values.get(name)]
        refuse_misspelled(values, (*ENVIRONMENT, "MEW_CA_FILE"))
        if missing:
            expected = "`mew up` sets them for its programs, `mew run COMMAND` for yours"
            raise ConfigError("environment", f"{', '.join(missing)} not set", expected)
        gateway, space, name, token = (values[variable] for variable in ENVIRONMENT)
        return cls(gateway, space=space, id=name, token=token)

    # -- lifetime ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.session.open(self.dispatcher.dispatch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self.session.close(kind, error, trace)

    async def take_part(self) -> None:
        """Join, stay until the connection ends for good, and leave. `run(me.take_part)` is a whole program.

        Raises what entering raises, and the `GatewayError` that ended the connection.
        """
        async with self:
            await self.run_forever()

    async def run_forever(self) -> None:
        """Wait until the connection ends for good. Raises the `GatewayError` that ended it, if there is one."""
        await self.session.run_forever()

    async def until_ended(self) -> None:
        """Wait until the connection has ended for good, whatever the cause."""
        await self.session.until_ended()

    async def aclose(self) -> None:
        """Leave the space."""
        await self.session.client.aclose()

    @property
    def context(self) -> PeerContext:
        """Our own context as last announced; without figures if we have none."""
        return self.control.context

    @property
    def is_joined(self) -> bool:
        """Whether there is a joined connection right now; without one, sending waits for the next."""
        return self.session.is_joined

    @property
    def peers(self) -> Peers:
        """Everyone else in the space, by id."""
        return self.messenger.peers

    @property
    def capabilities(self) -> CapabilitySet:
        """What we may send, as the gateway said last."""
        return self.messenger.capabilities

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run a background task until we leave. Its failure is logged and ends nothing else."""
        self.session.start_soon(function, *args)

    # -- offering ----------------------------------------------------------------------------------------

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        title: str | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        title: str | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> Any:
        """Decorator: offer a typed function as a tool to peers (and, in an agent, to its model).

        Its parameters become the schema and its docstring the description that models read, unless `name` and
        `description` override them. `title` and `annotations` (hints such as `{"readOnlyHint": True}`) are for clients
        that show the tool to people. An object as result (a dict, a pydantic model, a dataclass) is sent as text and as
        structured content; a declared class is also the output schema. Raises `TypeError` for parameters without a
        schema, and `ValueError` for a name that is taken. Returns the function.
        """

        def register(one: F) -> F:
            self.toolbox.add(
                Tool.from_function(one, name=name, description=description, title=title, annotations=annotations)
            )
            return one

        return register if function is None else register(function)

    def resource(
        self, uri: str, *, name: str | None = None, description: str | None = None, mime_type: str | None = None
    ) -> Callable[[ResourceFunction], ResourceFunction]:
        """Decorator: offer what a function returns (text, bytes, or any JSON value) for peers to read.

        `uri` may have `{placeholders}` for the function's arguments; a plain name becomes `resource:///name`.
        """

        def register(function: ResourceFunction) -> ResourceFunction:
            values = {"name": name, "description": description, "mime_type": mime_type}
            self.resources.add(Resource.from_function(function, uri, **values))
            return function

        return register

    # -- events ------------------------------------------------------------------------------------------

    @overload
    def on(self, what: type[E], /) -> Callable[[Callable[[E], object]], Callable[[E], object]]: ...

    @overload
    def on(self, what: str | None = None, /) -> Callable[[EnvelopeHandler], EnvelopeHandler]: ...

    def on(self, what: type[Any] | str | None = None, /) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Decorator: call the function with every event of a class, or every envelope of a kind (None: of any kind).

        `@me.on(ChatReceived)` gets a `ChatReceived`, `@me.on("chat")` an `Envelope`, `@me.on(SpaceEvent)` all events.
        Handlers run one at a time, in order; a plain `def` function runs in a thread, as a tool does. A slow handler
        delays later handlers, but neither the connection nor the replies it awaits; `start_soon` runs something in the
        background. Raises `TypeError` for any other argument.
        """

        def register(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
            self.listeners.add(what, handler)
            return handler

        if what is not None and not isinstance(what, type | str):
            raise TypeError(f'on() takes a kind or an event class, not {what!r}: @me.on("chat"), @me.on(ChatReceived)')
        return register

    def on_chat(self, handler: ChatHandler) -> ChatHandler:
        """Decorator: call the function with every chat from another participant, as a `ChatReceived`."""
        self.listeners.add(ChatReceived, handler)
        return handler

    def on_join(self, handler: PeerHandler) -> PeerHandler:
        """Decorator: call the function with every `Peer` that joins after us."""
        self.listeners.add(PeerJoined, handler, lambda event: (event.peer,))
        return handler

    def on_leave(self, handler: PeerHandler) -> PeerHandler:
        """Decorator: call the function with every `Peer` that leaves, as it was known."""
        self.listeners.add(PeerLeft, handler, lambda event: (event.peer,))
        return handler

    def on_context(self, handler: ContextHandler) -> ContextHandler:
        """Decorator: call the function `(peer, context)` for every context report of a peer."""
        self.listeners.add(ContextReported, handler, lambda event: (event.peer, event.context))
        return handler

    def on_context_level(self, handler: LevelHandler) -> LevelHandler:
        """Decorator: call the function `(peer, context, before)` when the level in a report changes.

        This includes our own reports; `peer.id` is then our id.
        """
        self.listeners.add(PeerLevelChanged, handler, lambda event: (event.peer, event.context, event.before))
        return handler

    def on_context_low(self, handler: ContextHandler) -> ContextHandler:
        """Decorator: call the function `(peer, context)` when a context runs low: its severity rises, to 1 or more.

        This includes our own reports.
        """

        async def call_if_low(event: PeerLevelChanged) -> None:
            if event.is_low:
                await call_handler(handler, event.peer, event.context)

        self.listeners.add(PeerLevelChanged, call_if_low)
        return handler

    def on_proposal(self, handler: ProposalHandler) -> ProposalHandler:
        """Decorator: call the function with every `ProposalMade` by another participant."""
        self.listeners.add(ProposalMade, handler)
        return handler

    def on_proposal_closed(self, handler: ProposalClosedHandler) -> ProposalClosedHandler:
        """Decorator: call the function with every `ProposalClosed`: decided, withdrawn, or its proposer left."""
        self.listeners.add(ProposalClosed, handler)
        return handler

    # -- sending -----------------------------------------------------------------------------------------

    def may_send(self, kind: str, payload: Mapping[str, Any] | None = None, to: tuple[str, ...] = ()) -> bool:
        """Whether our capabilities cover such an envelope."""
        return self.messenger.may_send(kind, payload, to)

    async def send(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None = None,
        *,
        to: tuple[str, ...] | list[str] | str = (),
        correlation_id: tuple[str, ...] = (),
        context: str | None = None,
        wait_seconds: float = SEND_TIMEOUT_SECONDS,
        confirm: bool = True,
    ) -> Envelope:
        """Send one envelope, wait until the gateway has accepted it, and return it.

        It is repeated under its id after a lost connection; members get it once. While paused, a kind that may not be
        sent then waits until we are resumed. `confirm=False` writes it once and does not wait.

        Raises `NotPermitted` if no capability covers it; `NotAccepted` if the gateway refused it; `NotConfirmed` if the
        gateway did not confirm it within `wait_seconds`, so that members may or may not get it; `NotConnected` if it
        could not be sent in that time; `TooLarge` if the gateway does not accept its size.
        """
        return await self.messenger.send(
            kind,
            payload,
            to=to,
            correlation_id=correlation_id,
            context=context,
            wait_seconds=wait_seconds,
            confirm=confirm,
        )

    async def send_frame(self, frame: bytes | str, *, wait_seconds: float = SEND_TIMEOUT_SECONDS) -> None:
        """Send a stream frame made by `mew_protocol.codec.encode_frame`. Raises `NotConnected` after `wait_seconds`."""
        await self.session.client.send_unconfirmed(frame, wait_seconds=wait_seconds)

    async def chat(
        self, text: str, *, to: tuple[str, ...] | list[str] | str = (), correlation_id: tuple[str, ...] = ()
    ) -> Envelope:
        """Send a chat to the participants in `to`, or to everyone. Raises what `send` raises."""
        return await self.send(kinds.CHAT, {"text": text}, to=to, correlation_id=correlation_id)

    async def ask(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None = None,
        *,
        to: str,
        answer: str,
        timeout_seconds: float = 120.0,
    ) -> Envelope:
        """Send an envelope and wait for the envelope of kind `answer` with which `to` answers it.

        Raises a `PeerError` if there is none: `PeerAbsent` at once if `to` is not here, and as soon as it leaves,
        `PeerTimeout`, `Refused` if the gateway did not relay the request, `AnswerLost`. Raises what `send` raises.
        """
        return await self.messenger.ask(kind, payload, to=to, answer=answer, timeout_seconds=timeout_seconds)

    def ask_agent(self, agent: str, text: str, *, inactivity_seconds: float = INACTIVITY_SECONDS) -> AnswerStream:
        """Ask an agent: `await` it for the `Answered`, or read it with `async for`, event by event as it is written.

        Events are `Thinking`, `Writing`, `ToolCalled`, `ContextNotice`, and `Answered` at the end. Leaving the loop
        before that cancels the agent's work. When awaited or read, raises `NoAnswer` if the agent will not answer or
        shows no activity for `inactivity_seconds`, `PeerAbsent`, and what `send` raises.
        """
        return AnswerStream(self.answers, agent, text, inactivity_seconds)

    async def request(
        self, peer: str, method: str, params: Mapping[str, Any] | None = None, *, timeouts: Timeouts | None = None
    ) -> Any:
        """Make an MCP request to a peer and return its result, as the peer formed it.

        It is sent as an `mcp/request` if our capabilities cover that, otherwise as an `mcp/proposal` that another
        participant has to fulfil. Raises `NotPermitted` if we may send neither, `PeerFailed` if the peer answers with
        an error, `Rejected`, and what `ask` raises.
        """
        return await self.mcp.request(peer, method, params, timeouts=timeouts)

    async def propose(
        self,
        peer: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeouts: Timeouts | None = None,
        fulfillers: Collection[str] | None = None,
    ) -> Any:
        """Propose an MCP request to a peer and return its result after another participant has fulfilled it.

        With `fulfillers`, only these participants can fulfil or reject it (default: any). The proposal is withdrawn if
        that does not happen in time, or if the caller is cancelled. Raises what `request` raises.
        """
        return await self.mcp.propose(peer, method, params, timeouts=timeouts, fulfillers=fulfillers)

    async def call_tool(
        self, peer: str, name: str, arguments: Mapping[str, Any] | None = None, *, timeouts: Timeouts | None = None
    ) -> ToolResult:
        """Call a peer's tool, by request or proposal. A tool that failed has a result with `is_error`.

        Raises what `request` raises.
        """
        params = {"name": name, "arguments": dict(arguments or {})}
        return ToolResult.from_peer(await self.request(peer, "tools/call", params, timeouts=timeouts))

    async def discover(self, peer: str) -> Peer:
        """Ask a peer what it offers, and return it with its `tools`, `resources` and `prompts`.

        Raises what `request` raises if it does not list its tools.
        """
        return await self.discovery.discover(peer)

    # -- hooks for subclasses ----------------------------------------------------------------------------

    async def receive(self, envelope: Envelope) -> None:
        """Hook: an envelope arrived. Called in order of arrival; must return soon."""

    async def receive_past(self, envelope: Envelope) -> None:
        """Hook: an envelope arrived that was sent before we first joined; nothing else handles it."""

    async def receive_frame(self, frame: StreamFrame) -> None:
        """Hook: a stream frame arrived."""

    async def joined(self) -> None:
        """Hook: the gateway welcomed us, on the first or a later connection."""

    async def close_streams(self, reason: str) -> None:
        """Hook: close the streams that the subclass owns."""
