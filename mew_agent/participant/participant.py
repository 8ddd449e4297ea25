"""A participant of a space: the public interface of this package.

Connects the parts: `session` (connection and tasks), `messenger` (sends), `dispatcher` (passes arrivals on), and the
parts that follow arrivals: `control`, `mcp_server`, `discovery`, `answers`, `events`. Does not know language models;
`Agent` adds one.
"""

import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar, overload

from mew_board.visible import short_line
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.context_report import UnknownReason, Waiting
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import Pause, Resume, is_control_for, read_control
from mew_protocol.status_word import StatusWord, status_word
from pydantic import BaseModel

from mew_agent.errors import ConfigError, described, first_cause, refuse_misspelled
from mew_agent.participant.answers.agent_answers import INACTIVITY_SECONDS, AgentAnswers, AnswerStream
from mew_agent.participant.client import SEND_TIMEOUT_SECONDS, Client, Credentials
from mew_agent.participant.controls import Control, Controllable
from mew_agent.participant.discovery import Discovery
from mew_agent.participant.dispatcher import Dispatcher, Hooks
from mew_agent.participant.event_handlers import (
    ChatReceived,
    ContextReported,
    EventEmitter,
    Handler,
    Listeners,
    PeerJoined,
    PeerLeft,
    PeerLevelChanged,
    ProposalClosed,
    ProposalMade,
)
from mew_agent.participant.external_context import (
    ClearHandler,
    CompactHandler,
    ExternalContext,
    ForgetHandler,
    ReportedBasis,
)
from mew_agent.participant.gaps import ConnectionLost
from mew_agent.participant.mcp_client import McpClient, PeerCall, Timeouts
from mew_agent.participant.mcp_server import McpServer
from mew_agent.participant.messenger import Messenger, PendingRequest, SpaceSession, timestamp
from mew_agent.participant.peer_controls import PeerControls
from mew_agent.participant.peers import Peer, PeerContext, Peers
from mew_agent.participant.receipts import SentChat, SentReceipts
from mew_agent.tools.catalog import LocalOffers, Offers
from mew_agent.tools.functions import Tool
from mew_agent.tools.resources import Resource, ResourceFunction
from mew_agent.tools.results import ToolResult

E = TypeVar("E")
EnvelopeHandler = TypeVar("EnvelopeHandler", bound=Callable[[Envelope], object])
ChatHandler = TypeVar("ChatHandler", bound=Callable[[ChatReceived], object])
PeerHandler = TypeVar("PeerHandler", bound=Callable[[Peer], object])
ContextHandler = TypeVar("ContextHandler", bound=Callable[[Peer, PeerContext], object])
LevelHandler = TypeVar("LevelHandler", bound=Callable[[Peer, PeerContext, PeerContext], object])
ProposalHandler = TypeVar("ProposalHandler", bound=Callable[[ProposalMade], object])
ProposalClosedHandler = TypeVar("ProposalClosedHandler", bound=Callable[[ProposalClosed], object])
CompactFunction = TypeVar("CompactFunction", bound=CompactHandler)
ForgetFunction = TypeVar("ForgetFunction", bound=ForgetHandler)
ClearFunction = TypeVar("ClearFunction", bound=ClearHandler)
PauseHandler = TypeVar("PauseHandler", bound=Callable[[Pause | Resume], object])


class Subscriptions:
    """The `on...` decorators of a participant."""

    id: str
    listeners: Listeners
    external_context: ExternalContext

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
            return self.listeners.add(what, handler)

        if what is not None and not isinstance(what, type | str):
            raise TypeError(f'on() takes a kind or an event class, not {what!r}: @me.on("chat"), @me.on(ChatReceived)')
        return register

    def on_chat(self, handler: ChatHandler) -> ChatHandler:
        """Decorator: call the function with every chat from another participant, as a `ChatReceived`."""
        return self.listeners.add(ChatReceived, handler)

    def on_join(self, handler: PeerHandler) -> PeerHandler:
        """Decorator: call the function with every `Peer` that joins after us."""
        return self.listeners.add(PeerJoined, handler, lambda event: (event.peer,))

    def on_leave(self, handler: PeerHandler) -> PeerHandler:
        """Decorator: call the function with the last known state of every `Peer` that leaves."""
        return self.listeners.add(PeerLeft, handler, lambda event: (event.peer,))

    def on_context(self, handler: ContextHandler) -> ContextHandler:
        """Decorator: call the function `(peer, context)` for every context report of a peer."""
        return self.listeners.add(ContextReported, handler, lambda event: (event.peer, event.context))

    def on_context_level(self, handler: LevelHandler) -> LevelHandler:
        """Decorator: call the function `(peer, context, before)` when the level in a report changes.

        This includes our own reports; `peer.id` is then our id.
        """
        return self.listeners.add(PeerLevelChanged, handler, lambda event: (event.peer, event.context, event.before))

    def on_context_low(self, handler: ContextHandler) -> ContextHandler:
        """Decorator: call the function `(peer, context)` when a context runs low: its severity rises, to 1 or more.

        This includes our own reports.
        """
        return self.listeners.add(
            PeerLevelChanged, handler, lambda event: (event.peer, event.context) if event.is_low else None
        )

    def on_proposal(self, handler: ProposalHandler) -> ProposalHandler:
        """Decorator: call the function with every `ProposalMade` by another participant."""
        return self.listeners.add(ProposalMade, handler)

    def on_proposal_closed(self, handler: ProposalClosedHandler) -> ProposalClosedHandler:
        """Decorator: call the function with every `ProposalClosed` (decided, withdrawn, or the proposer left)."""
        return self.listeners.add(ProposalClosed, handler)

    # -- controls of a context that the program owns -----------------------------------------------------

    def on_compact(self, handler: CompactFunction) -> CompactFunction:
        """Decorator: call the function with every `Compact` that asks us to compact our context.

        It returns after compacting: None, or a `CompactDone` with known figures (`skipped` and `reason` if it did
        nothing). Until the next `report_context` the size is unknown. After an exception, or
        `external_context.handler_timeout_seconds`, the answer is skipped. Without a handler it is `not_supported`.
        """
        self.external_context.on_compact = handler
        return handler

    def on_forget(self, handler: ForgetFunction) -> ForgetFunction:
        """Decorator: call the function with every `Forget`; it drops messages and returns how many."""
        self.external_context.on_forget = handler
        return handler

    def on_clear(self, handler: ClearFunction) -> ClearFunction:
        """Decorator: call the function, without arguments, when we are asked to clear our history or to restart."""
        self.external_context.on_clear = handler
        return handler

    def on_pause(self, handler: PauseHandler) -> PauseHandler:
        """Decorator: call the function with every `Pause` and `Resume` for us. The gateway enforces pauses anyway."""
        for kind in (kinds.PARTICIPANT_PAUSE, kinds.PARTICIPANT_RESUME):
            self.listeners.add(
                kind, handler, lambda envelope: (read_control(envelope),) if is_control_for(envelope, self.id) else None
            )
        return handler

    def on_cancel(self, handler: EnvelopeHandler) -> EnvelopeHandler:
        """Decorator: call the function with every `chat/cancel` and `reasoning/cancel` for us.

        `chat/cancel` names chats in `correlation_id`, `reasoning/cancel` a reasoning in `context`.
        """
        for kind in (kinds.CHAT_CANCEL, kinds.REASONING_CANCEL):
            self.listeners.add(kind, handler, lambda envelope: (envelope,) if envelope.is_for(self.id) else None)
        return handler


MAX_REASON_CHARS: Final = 300


class HandlerFailures:
    """Follows the failures of one participant's handlers. `answers_chats` is false if other code answers chats."""

    def __init__(self, messenger: Messenger, control: Control, context: ExternalContext, answers_chats: bool) -> None:
        self.messenger, self.control, self.context, self.answers_chats = messenger, control, context, answers_chats
        self._failing: dict[int, StatusWord] = {}  # by the id of the handler, which may not be hashable

    def handled(self, envelope: Envelope | None, outcomes: Sequence[tuple[Handler, Exception | None]]) -> None:
        """Note the outcomes of the handlers of one arrival, in the order of the calls."""
        if self.messenger.session.client.is_ending:
            return
        errors = [one for _, one in outcomes if one is not None]
        if errors and envelope is not None and self._expects_answer(envelope):
            problem = f"its program failed: {_in_short(errors[0])}"
            self.messenger.session.start_soon(self.messenger.refuse_chat, envelope, problem, "program_failed")
        if envelope is None or envelope.sender != self.messenger.id:  # our own status must not cause the next one
            self._report(outcomes, is_status=envelope is not None and envelope.kind == kinds.PARTICIPANT_STATUS)

    def _report(self, outcomes: Sequence[tuple[Handler, Exception | None]], *, is_status: bool) -> None:
        """Announce the start and the end of a handler's failure; `is_status`: it handled an arriving status."""
        before = tuple(self._failing)
        for handler, error in sorted(outcomes, key=lambda one: one[1] is not None):
            if error is None:
                self._failing.pop(id(handler), None)
            else:
                name = getattr(handler, "__name__", type(handler).__name__)
                self._failing.setdefault(id(handler), status_word("handler_failed", f"{name}: {_in_short(error)}"))
        self.context.failing = next(reversed(self._failing.values()), None)
        is_new = any(one not in before for one in self._failing)
        # Statuses alone never report an end: two programs would answer each other's forever.
        if is_new or (len(self._failing) < len(before) and not is_status):
            self.messenger.session.start_soon(self.control.announce, self.context.failing)

    def _expects_answer(self, chat: Envelope) -> bool:
        """Return whether the sender may still wait for our chat."""
        return (
            self.answers_chats
            and chat.kind == kinds.CHAT
            and chat.sender != self.messenger.id
            and chat.names(self.messenger.id)
            and not chat.correlation_ids
            and chat.body.get("needs_reply") is not False
            and chat.id not in self.messenger.answered_chats
        )


def _in_short(error: BaseException) -> str:
    return short_line(described(first_cause(error)).rstrip(".: \n"), MAX_REASON_CHARS)


ENVIRONMENT = ("MEW_GATEWAY", "MEW_SPACE", "MEW_PARTICIPANT_ID", "MEW_TOKEN")

MAX_TOOL_WAITS = 20
"""Of how many peers a report says that their tools are left out."""

F = TypeVar("F", bound=Callable[..., Any])


class Participant(PeerControls, Subscriptions, Hooks):
    """Join a space: `async with Participant(gateway, space=..., id=..., token=...) as me`.

    Entering returns when the gateway has welcomed us; it raises `Unauthorized`, `CertificateRejected` or `NotConnected`
    otherwise. A connection that is lost later is restored automatically.
    """

    handlers_answer_chats: ClassVar[bool] = True
    """Whether a chat to us is refused if its event handler fails, because nothing else answers it."""

    def __init__(
        self,
        gateway: str | None = None,
        *,
        space: str | None = None,
        id: str,  # noqa: A002 - the wire's word
        token: str | None = None,
        conversation: Controllable | None = None,
        offers: Offers | None = None,
        first_connect_seconds: float = 10.0,
        discover: bool = False,
        timeouts: Timeouts | None = None,
        ca_file: str | Path | None = None,
        reports_context: bool = True,
    ) -> None:
        """`gateway` is a ws://, wss://, http:// or https:// URL; raises `ConfigError` for anything else.

        Without `gateway`, `space` and `token`, it joins the space of `Space.add`. `conversation` carries out the
        controls. `offers` replaces our own tools and resources. `discover` asks every peer automatically for its tools;
        `timeouts` apply to MCP requests. `ca_file` names a PEM file of certificates to trust in addition to those of
        the system (default: the file in `MEW_CA_FILE`). With `reports_context` False, it acts for a person without a
        context, and never replaces another program's report.
        """
        self.id = id
        self.space = space or ""
        self._is_from_environment = False
        own = LocalOffers()
        self.toolbox, self.resources = own.toolbox, own.resources
        self.listeners = Listeners()
        credentials = _credentials(gateway, space, id, token, ca_file)
        client = Client(credentials, first_connect_seconds=first_connect_seconds)
        client.on_lost = lambda cause: self.listeners.emit(None, ConnectionLost(cause))
        self.session = SpaceSession(client)
        super().__init__(Messenger(id, self.session))
        self.peers: Peers = self.messenger.peers
        """Everyone else in the space, by id."""
        self.events = EventEmitter(self.messenger, self.listeners)
        # From here on the order matters: a part is made with those above it, and later it gets an envelope in the order
        # of `parts`. The control and the context of a program need each other, so the context gets its functions last.
        self.external_context = ExternalContext()
        self._reports_context = reports_context
        self.control = Control(
            self.messenger, self.listeners, hooks=self, conversation=conversation or self.external_context
        )
        self.external_context.compacting.announce = self.control.announce
        self.external_context.on_changed = lambda form: self.control.receipts.book.context_changed(form)
        self.hooks: Hooks = self
        self.mcp = McpClient(self.messenger, timeouts or Timeouts(), lambda: self.hooks.waits_changed())
        self.mcp_server = McpServer(self.messenger, offers or own)
        self.discovery = Discovery(self.messenger, self.mcp, is_on=discover)
        self.answers = AgentAnswers(self.messenger)
        self.tool_waits: tuple[Waiting, ...] = ()
        """The peers with tools that our model does not get, in the form of reports."""
        failures = HandlerFailures(self.messenger, self.control, self.external_context, self.handlers_answer_chats)
        self.listeners.on_handled = failures.handled
        router = self.answers.router
        parts = (self.control, self.mcp_server, self.discovery, router.streams, self.unfinished)
        receivers = ((part.received_kinds, part.receive) for part in parts)
        self.dispatcher = Dispatcher(self.messenger, receivers, router, hooks=self, events=self.events)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Create the participant from `MEW_GATEWAY`, `MEW_SPACE`, `MEW_PARTICIPANT_ID` and `MEW_TOKEN`.

        `mew up` sets them for each program that it starts, `mew run` for one that you start. The process environment is
        read on entering, so that tests can import your module without it; `id` and `space` are empty until then unless
        the variables are set. `environ` replaces it and is read at once. Reading raises `ConfigError` that names the
        missing or misspelled variables.
        """
        if environ is not None:
            place = _place_in(environ)
            return cls(place.gateway, space=place.space, id=place.participant, token=place.token)
        me = cls(id=os.environ.get("MEW_PARTICIPANT_ID", ""))
        me.space = os.environ.get("MEW_SPACE", "")
        me._is_from_environment = True
        return me

    def use(self, place: Credentials) -> None:
        """Join with these credentials; call it before entering."""
        self.id = self.messenger.id = name = place.participant
        for part in (self.peers, self.messenger.pending, self.answers.router, self.events.proposals, self.unfinished):
            part.me = name
        self.space = place.space
        self.session.client.use(place)

    @property
    def has_place(self) -> bool:
        """True if the space is known, or will be on entering."""
        return self._is_from_environment or self.session.client.has_credentials

    @cached_property
    def sent_receipts(self) -> SentReceipts:
        """The receipts of our own messages, created at first use."""
        found = SentReceipts()
        self.dispatcher.add(found.received_kinds, found.receive)
        return found

    # -- lifetime ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self.session.was_opened:
            raise RuntimeError(f"'{self.id}' was entered before; make a new {type(self).__name__} to join again")
        if self._is_from_environment:
            self.use(_place_in(os.environ))
        elif not self.has_place:
            problem, expected = "no space to join", "gateway, space and token, or `await space.add(...)`"
            raise ConfigError(f"participant '{self.id}'", problem, expected)
        try:
            await self.hooks.before_join()
            await self.session.open(self.dispatcher.dispatch, self.listeners.run)
        except BaseException:
            await self.hooks.after_leave()
            raise
        await self.hooks.entered()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            await self.answers.cancel_all()
            return await self.session.close(kind, error, trace)
        finally:
            await self.hooks.after_leave()

    def use_hooks(self, hooks: Hooks) -> None:
        """Let another object follow our lifetime and all envelopes; call it before joining."""
        self.hooks = self.dispatcher.hooks = self.control.hooks = hooks

    async def take_part(self) -> None:
        """Join, stay until the connection ends for good, and leave. `run(me.take_part)` is a whole program.

        Raises the errors of entering, and the `GatewayError` that ended the connection.
        """
        async with self:
            await self.run_forever()

    async def run_forever(self) -> None:
        """Wait until the connection ends for good. Raises the `GatewayError` that ended it, if there is one."""
        await self.session.run_forever()

    async def until_ended(self) -> None:
        """Wait until the connection has ended for good."""
        await self.session.ended.wait()

    async def aclose(self) -> None:
        """Leave the space."""
        await self.session.client.aclose()

    async def joined(self) -> None:
        """Announce the status of a conversation kept elsewhere again, because the gateway may have missed or lost it.

        The size is unknown if an earlier process reported it. Sends followers the receipts that they missed.
        """
        self.control.receipts.joined()
        own = self.external_context
        is_ours = self._reports_context and self.control.conversation is own
        has_announced = self.context.messages is not None
        if is_ours and (own.restart_after(self.peers.last_context(self.id)) or has_announced):
            self.start_soon(self.control.announce)

    async def report_context(
        self,
        tokens: int | None = None,
        *,
        usage: object = None,
        window: int | None = None,
        basis: ReportedBasis = "reported",
        messages: int | None = None,
        model: str | None = None,
        measured_at: str | None = None,
        unknown: UnknownReason | None = None,
        read: Iterable[str] = (),
    ) -> None:
        """Announce how full our context is, for a program that keeps its conversation in another library.

        `usage` is the usage object of the newest call as your library has it, of a class or a mapping; `tokens` is its
        total. A sum over several calls is announced as `provisional`. `window` is the size of the window, `messages`
        the number of messages, `measured_at` a time in ISO 8601 (default: now); omitted values stay as reported before.
        `basis` says how the figure is known. `unknown` is the reason why no figure is valid until the next report.
        `read` are the ids of messages that a prompt contained, for their receipts; alone it announces nothing. Raises
        `InvalidReport` for figures that no call can have and for older ones; `TypeError` if we have a conversation of
        our own.
        """
        if self.control.conversation is not self.external_context or not self._reports_context:
            raise TypeError("report_context() is for participants that keep a conversation outside of this package")
        if read := tuple(read):
            self.control.receipts.book.note_read(read, timestamp())
        if unknown is not None:
            self.external_context.forget_figures(unknown)
        elif read and tokens is None and usage is None:
            return
        else:
            self.external_context.report(
                tokens,
                usage,
                basis=basis,
                now=timestamp(),
                measured_at=measured_at,
                window=window,
                messages=messages,
                model=model,
            )
        await self.control.announce()

    @property
    def context(self) -> PeerContext:
        """Our own context as last announced; without figures if we have none."""
        return self.control.context

    @property
    def is_joined(self) -> bool:
        """Whether we are joined now; otherwise sending waits for the next connection."""
        return self.session.client.is_joined

    @property
    def capabilities(self) -> CapabilitySet:
        """Our capabilities, as last announced by the gateway."""
        return self.messenger.capabilities

    def show_tools_left_out(self, left_out: Mapping[str, str]) -> None:
        """Report why tools are not offered to a model, by peer."""
        known, now = {(one.peer, one.what): one for one in self.tool_waits}, timestamp()
        self.tool_waits = tuple(
            known.get((peer, why)) or Waiting(kind="tools", peer=peer, what=why, since=now)
            for peer, why in islice(left_out.items(), MAX_TOOL_WAITS)
        )
        self.hooks.waits_changed()

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
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

    def tool(self, function: F | None = None, /, **details: Any) -> Any:
        """Decorator: offer a typed function as a tool to peers (and, in an agent, to its model).

        Its parameters become the schema and its docstring the description that models read, unless `name` and
        `description` override them. `title` and `annotations` (hints such as `{"readOnlyHint": True}`) are for clients
        that show the tool to people. An object as result (a dict, a pydantic model, a dataclass) is sent as text and as
        structured content; a declared class is also the output schema. Raises `TypeError` for parameters without a
        schema, and `ValueError` for a name that is taken. Returns the function.
        """

        def register(one: F) -> F:
            self.toolbox.add(Tool.from_function(one, **details))
            return one

        return register if function is None else register(function)

    def resource(
        self, uri: str, *, name: str | None = None, description: str | None = None, mime_type: str | None = None
    ) -> Callable[[ResourceFunction], ResourceFunction]:
        """Decorator: offer the result of a function (text, bytes, or any JSON value) for peers to read.

        `uri` may have `{placeholders}` for the function's arguments; a plain name becomes `resource:///name`.
        """

        def register(function: ResourceFunction) -> ResourceFunction:
            self.resources.add(
                Resource.from_function(function, uri, name=name, description=description, mime_type=mime_type)
            )
            return function

        return register

    # -- sending -----------------------------------------------------------------------------------------

    def may_send(self, kind: str, payload: Mapping[str, Any] | None = None, to: tuple[str, ...] = ()) -> bool:
        """Return whether our capabilities cover such an envelope."""
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

        It is repeated under its id after a lost connection; members get it once. While paused, kinds that may not be
        sent wait until we are resumed. `confirm=False` writes it once and does not wait.

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
        self,
        text: str,
        *,
        to: tuple[str, ...] | list[str] | str = (),
        correlation_id: tuple[str, ...] = (),
        urgent: bool = False,
    ) -> SentChat:
        """Send a chat to the participants in `to`, or to everyone. Raises the errors of `send`.

        `urgent` asks an agent to read it before the next step of the answer that it works on, if its settings allow
        that. `await sent.read()` waits until the model of every addressee has read it.
        """
        payload = {"text": text, **({"urgent": True} if urgent else {})}
        addressees = (to,) if isinstance(to, str) else tuple(to)
        envelope = self.messenger.draft(kinds.CHAT, payload, to=addressees, correlation_id=correlation_id)
        state = self.sent_receipts.track(envelope.id)  # a receipt may arrive before the echo
        position = await self.messenger.send_envelope(envelope)
        return SentChat.tracked(envelope, position, state, partial(self.receipts, follow=True))

    async def ask(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None = None,
        *,
        to: str,
        answer: str,
        timeout_seconds: float = 120.0,
    ) -> Envelope:
        """Send an envelope to `to` and wait for its answer of kind `answer`.

        Raises a `PeerError` without an answer: `PeerAbsent` at once if `to` is not here or when it leaves,
        `PeerTimeout`, `Refused` if the gateway did not relay the request, `AnswerLost`. Raises the errors of `send`.
        """
        request = PendingRequest(self.messenger.draft(kind, payload, to=(to,)), to, answer)
        return await self.messenger.answer_to(request, timeout_seconds)

    def ask_agent(self, agent: str, text: str, *, inactivity_seconds: float = INACTIVITY_SECONDS) -> AnswerStream:
        """Ask an agent: `await` it for the `Answered`, or read it with `async for`, event by event as it is written.

        Events are `Thinking`, `Writing`, `ToolCalled`, `ContextNotice`, and `Answered` at the end. Leaving the loop
        before that cancels the agent's work. When awaited or read, raises `NoAnswer` if the agent will not answer or
        shows no activity for `inactivity_seconds`, `PeerAbsent`, and the errors of `send`.
        """
        return AnswerStream(self.answers, agent, text, inactivity_seconds)

    async def request(
        self, peer: str, method: str, params: Mapping[str, Any] | None = None, *, timeouts: Timeouts | None = None
    ) -> Any:
        """Make an MCP request to a peer and return its result unchanged.

        It is sent as an `mcp/request` if our capabilities cover that, otherwise as an `mcp/proposal` for another
        participant to fulfil. Raises `NotPermitted` if we may send neither, `PeerFailed` if the peer answers with an
        error, `Rejected`, and the errors of `ask`.
        """
        return await self.mcp.request(PeerCall(peer, method, params), timeouts)

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
        that does not happen in time, or if the caller is cancelled. Raises the errors of `request`.
        """
        return await self.mcp.propose(PeerCall(peer, method, params), timeouts, fulfillers)

    async def call_tool(
        self, peer: str, name: str, arguments: Mapping[str, Any] | None = None, *, timeouts: Timeouts | None = None
    ) -> ToolResult:
        """Call a peer's tool, by request or proposal. A tool that failed has a result with `is_error`.

        Raises the errors of `request`.
        """
        params = {"name": name, "arguments": dict(arguments or {})}
        return ToolResult.from_peer(await self.request(peer, "tools/call", params, timeouts=timeouts))

    # -- deciding and reading back -----------------------------------------------------------------------

    @property
    def proposals(self) -> tuple[ProposalMade, ...]:
        """The open proposals of other participants, oldest first."""
        return tuple(self.events.proposals)

    async def approve(self, proposal: ProposalMade | str, arguments: Mapping[str, Any] | None = None) -> Envelope:
        """Approve a proposal (an object or an id) by making its request; `arguments` replace the proposed ones.

        Raises `ConfigError` if no open proposal has this id, and the errors of `send`.
        """
        return await self.events.proposals.find(proposal).fulfil(arguments)

    async def reject(self, proposal: ProposalMade | str, reason: str = "disagree") -> Envelope:
        """Reject a proposal. Raises the errors of `approve`."""
        return await self.events.proposals.find(proposal).reject(reason)

    async def history(
        self, peer: str | None = None, *, last: int = 20, kinds_like: Collection[str] = (kinds.CHAT,)
    ) -> list[Envelope]:
        """Return the newest envelopes that the gateway keeps, oldest first: chats, or of `kinds_like` such as `mcp/*`.

        With `peer`, only those from or to it. Raises `GatewayError` if the gateway does not list them.
        """
        from mew_agent.participant.stored_messages import stored_messages  # its HTTP client takes a while to import

        return await stored_messages(self.session.client, kinds_like, peer, last)

    async def discover(self, peer: str) -> Peer:
        """Ask a peer for its offers, and return it with its `tools`, `resources` and `prompts`.

        Raises the errors of `request` if it does not list its tools.
        """
        return await self.discovery.discover(peer)


def _credentials(
    gateway: str | None, space: str | None, name: str, token: str | None, ca_file: str | Path | None
) -> Credentials | None:
    """Return the credentials; None if none of them is given. Raises `ConfigError` if some are missing."""
    if gateway is not None and space is not None and token is not None:
        return Credentials(gateway, space, name, token, ca_file)
    given = {"gateway": gateway, "space": space, "token": token}
    missing = [key for key, value in given.items() if value is None]
    if len(missing) < len(given):
        raise ConfigError(
            f"participant '{name}'", f"{' and '.join(missing)} missing", "all of gateway, space and token"
        )
    return None


def _place_in(environ: Mapping[str, str]) -> Credentials:
    """Return the credentials in environment variables. Raises `ConfigError` if some are missing or misspelled."""
    missing = [name for name in ENVIRONMENT if not environ.get(name)]
    refuse_misspelled(environ, (*ENVIRONMENT, "MEW_CA_FILE"))
    if missing:
        advice = "`mew run FILE.py` starts a program with them, and `mew up` each one that space.yaml names"
        raise ConfigError("environment", f"{', '.join(missing)} not set; {advice}")
    gateway, space, name, token = (environ[variable] for variable in ENVIRONMENT)
    return Credentials(gateway, space, name, token)
