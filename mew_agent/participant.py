"""A member of a space: joins, knows its peers, says and hears things, answers controls and tool calls.

The base of agents and the library's front door for people's own programs. It knows no language model.
"""

import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

import anyio
import anyio.abc
from pydantic import BaseModel

from mew_agent.asking.discovery import Discovery
from mew_agent.asking.peer_offers import ToolResult
from mew_agent.asking.proposals import PeerRequests, Waits
from mew_agent.asking.questions import Question, Questions
from mew_agent.client import SEND_TIMEOUT_SECONDS, Address, Client
from mew_agent.control import ALLOWED_WHILE_PAUSED, Control, Controllable
from mew_agent.errors import BadAnswer, ConfigError, GatewayError, MewAgentError, NotPermitted
from mew_agent.events import ContextHandler, Events, Handler, LevelChange, LevelHandler
from mew_agent.offers import answers
from mew_agent.offers.local import LocalOffers, Offers
from mew_agent.offers.resources import Resource, ResourceFunction
from mew_agent.offers.tools import Tool, ToolFunction
from mew_agent.peers import Peer, PeerContext, Peers, who_left
from protocol import kinds
from protocol.capability import CapabilitySet
from protocol.codec import StreamFrame
from protocol.envelope import Envelope
from protocol.errors import PayloadError
from protocol.payloads import read_payload
from protocol.payloads.base import Payload
from protocol.payloads.participant import Compact, CompactDone, Status
from protocol.payloads.system import Welcome

logger = logging.getLogger("mew_agent.participant")

PEER_RETURN_SECONDS = 10.0
"""How long after joining anew a peer that owes us an answer may take to come back, too."""


class _UnreadableWelcome(GatewayError):
    """We joined, and cannot read what we may."""


class Participant:
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
        self.id = id
        self.space = space
        self.peers = Peers(id)
        own = LocalOffers()
        self.toolbox, self.resources = own.toolbox, own.resources
        self.offers: Offers = own if offers is None else offers
        self.capabilities = CapabilitySet()
        self._client = Client(Address(gateway, space, id, token), first_connect_seconds=first_connect_seconds)
        self.control = Control(
            id, self.send, self._close_streams, self.aclose, conversation, noted=self._note_own_status
        )
        self.context = PeerContext()
        """How full our own context is, as we last told; nothing is known for those that have none."""
        self._events = Events()
        self._questions = Questions(id)
        self.requests = PeerRequests(self, waits or Waits())
        self.discovery = Discovery(self, is_on=discover)
        self._joins_told = 0
        self._welcomed = anyio.Event()
        self._ended = anyio.Event()
        self._failure: MewAgentError | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Participant":
        """The participant that `MEW_GATEWAY`, `MEW_SPACE`, `MEW_PARTICIPANT_ID` and `MEW_TOKEN` name.

        `mew up` sets them for every program that it starts. Raises `ConfigError` naming those that are missing.
        """
        named = ("MEW_GATEWAY", "MEW_SPACE", "MEW_PARTICIPANT_ID", "MEW_TOKEN")
        missing = [name for name in named if not environ.get(name)]
        if missing:
            raise ConfigError("environment", f"{', '.join(missing)} not set", "`mew up` sets them for its programs")
        gateway, space, name, token = (environ[variable] for variable in named)
        return Participant(gateway, space=space, id=name, token=token)

    # -- life --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._events.open()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            self._tasks.start_soon(self._stay_joined)
            self._tasks.start_soon(self._events.run)
            await self._first_of_welcome_and_end()
        except BaseException:
            self._tasks.cancel_scope.cancel()
            try:
                await self._tasks.__aexit__(None, None, None)
            finally:
                self._events.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(3):
            await self.aclose()
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        try:
            if isinstance(error, Exception):
                # A task group would wrap it; whoever wrote the block wants to catch what was raised.
                await self._tasks.__aexit__(None, None, None)
                return None
            return await self._tasks.__aexit__(kind, error, trace)
        finally:
            self._events.close()

    async def until_ended(self) -> None:
        """Wait until the connection has ended for good, whatever the cause."""
        await self._ended.wait()

    async def run_forever(self) -> None:
        """Stay until the connection ends for good. Raises the `GatewayError` that ended it, if one did."""
        await self.until_ended()
        if self._failure is not None:
            raise self._failure

    async def aclose(self) -> None:
        """Leave the space."""
        await self._client.aclose()

    @property
    def is_joined(self) -> bool:
        """Whether there is a joined connection right now; without one, sending waits for the next."""
        return self._client.is_joined

    # -- saying ------------------------------------------------------------------------------------------

    def may_send(self, kind: str, payload: Mapping[str, Any] | None = None, to: tuple[str, ...] = ()) -> bool:
        """Whether our capabilities cover such an envelope."""
        return self.capabilities.allows(self.draft(kind, payload, to=to))

    async def send(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None = None,
        *,
        to: tuple[str, ...] | list[str] | str = (),
        correlation_id: tuple[str, ...] = (),
        context: str | None = None,
        wait_seconds: float = SEND_TIMEOUT_SECONDS,
    ) -> Envelope:
        """Send one envelope and return it as sent. While paused, what may not be said waits for the resume.

        Raises `NotPermitted` without a capability that covers it, `NotConnected` when no gateway came back within
        `wait_seconds`.
        """
        addressees = (to,) if isinstance(to, str) else tuple(to)
        envelope = self.draft(kind, payload, to=addressees, correlation_id=correlation_id, context=context)
        if not self.capabilities.allows(envelope):
            raise NotPermitted(self.id, kind)
        if kind not in ALLOWED_WHILE_PAUSED:
            await self.control.until_active()
        await self._client.send(envelope, wait_seconds=wait_seconds)
        return envelope

    async def chat(
        self, text: str, *, to: tuple[str, ...] | list[str] | str = (), correlation_id: tuple[str, ...] = ()
    ) -> Envelope:
        """Say something, to everybody unless `to` names somebody."""
        return await self.send(kinds.CHAT, {"text": text}, to=to, correlation_id=correlation_id)

    async def send_frame(self, frame: bytes | str, *, wait_seconds: float = SEND_TIMEOUT_SECONDS) -> None:
        """Send a raw stream frame (`protocol.encode_frame`). Raises `NotConnected` after `wait_seconds`."""
        await self._client.send(frame, wait_seconds=wait_seconds)

    async def ask(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None = None,
        *,
        to: str,
        answer: str,
        timeout_seconds: float = 120.0,
    ) -> Envelope:
        """Send an envelope and wait for `to`'s answer of kind `answer` that names it.

        Raises a `PeerError` when there is none (`PeerTimeout`, `PeerAbsent` as soon as the peer leaves, `Refused` when
        the gateway did not deliver it, `AnswerLost`), and what `send` raises.
        """
        question = Question(self.draft(kind, payload, to=(to,)), to, answer)
        with self._questions.open(question), anyio.move_on_after(timeout_seconds):
            await self.pose(question)
            await question.settled.wait()
        return question.answered(timeout_seconds)

    async def pose(self, question: Question) -> None:
        """Send an envelope that waits for its answer. Raises `NotPermitted` and `NotConnected`."""
        sent = question.sent
        if not self.capabilities.allows(sent):
            raise NotPermitted(self.id, sent.kind)
        if sent.kind not in ALLOWED_WHILE_PAUSED:
            await self.control.until_active()
        await self._client.send(sent)
        question.is_sent = True

    def waiting_for(self, question: Question) -> AbstractContextManager[None]:
        """While the block runs, what arrives may answer the question."""
        return self._questions.open(question)

    async def compact(
        self, peer: str, *, reason: str | None = None, target_tokens: int | None = None, timeout_seconds: float = 120.0
    ) -> CompactDone:
        """Ask a peer to compact its context and wait until it has. Check `skipped` and `freed_tokens`."""
        done = await self.ask(
            kinds.PARTICIPANT_COMPACT,
            Compact(reason=reason, target_tokens=target_tokens),
            to=peer,
            answer=kinds.PARTICIPANT_COMPACT_DONE,
            timeout_seconds=timeout_seconds,
        )
        return _read(done, CompactDone)

    async def request_status(self, peer: str, *, timeout_seconds: float = 30.0) -> Status:
        """Ask a peer for its status of this moment."""
        answer = await self.ask(
            kinds.PARTICIPANT_REQUEST_STATUS,
            {},
            to=peer,
            answer=kinds.PARTICIPANT_STATUS,
            timeout_seconds=timeout_seconds,
        )
        return _read(answer, Status)

    async def request(
        self, peer: str, method: str, params: Mapping[str, Any] | None = None, *, waits: Waits | None = None
    ) -> Any:
        """Make an MCP request of a peer and return its result, as the peer shaped it.

        It goes as an `mcp/request` where our capabilities cover that, else as an `mcp/proposal` that somebody who may
        has to fulfil. Raises `NotPermitted` where we may do neither, `PeerFailed` for an error of the peer's,
        `Rejected`, and what `ask` raises.
        """
        return await self.requests.request(peer, method, params, waits=waits)

    async def propose(
        self, peer: str, method: str, params: Mapping[str, Any] | None = None, *, waits: Waits | None = None
    ) -> Any:
        """Propose an MCP request to a peer and return its result once somebody has fulfilled it; see `request`.

        The proposal is withdrawn when nobody does in time, or when the caller is cancelled.
        """
        return await self.requests.propose(peer, method, params, waits=waits)

    async def call_tool(
        self, peer: str, name: str, arguments: Mapping[str, Any] | None = None, *, waits: Waits | None = None
    ) -> ToolResult:
        """Call a peer's tool, by request or proposal. A tool that failed has a result with `is_error`.

        Raises what `request` raises.
        """
        params = {"name": name, "arguments": dict(arguments or {})}
        return ToolResult.read(await self.request(peer, "tools/call", params, waits=waits))

    async def discover(self, peer: str) -> Peer:
        """Ask a peer what it offers, now, and return it with its `tools`, `resources` and `prompts`.

        Raises what `request` raises when it does not tell its tools.
        """
        return await self.discovery.discover(peer)

    # -- hearing -----------------------------------------------------------------------------------------

    def on(self, kind: str | None = None) -> Callable[[Handler], Handler]:
        """Decorator: call the function for every envelope of a kind (None: of every kind), in order."""

        def register(handler: Handler) -> Handler:
            self._events.on(kind, handler)
            return handler

        return register

    def on_context(self, handler: ContextHandler) -> ContextHandler:
        """Decorator: call the function `(peer, context)` for every context report of every peer."""
        self._events.on_context(handler)
        return handler

    def on_context_level(self, handler: LevelHandler) -> LevelHandler:
        """Decorator: call the function `(peer, context, before)` when a report has another level than the one before.

        Reports of our own count, too; `peer.id` is then ours.
        """
        self._events.on_level(handler)
        return handler

    def on_context_low(self, handler: ContextHandler) -> ContextHandler:
        """Decorator: call the function `(peer, context)` when somebody's room gets shorter than it was, and short.

        That is when the severity of a report rises to 1 or more. Reports of our own count, too.
        """
        self._events.on_low(handler)
        return handler

    def tool(self, function: ToolFunction) -> ToolFunction:
        """Decorator: offer a typed function as a tool to peers (and, in an agent, to its model)."""
        self.toolbox.add(Tool.of(function))
        return function

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

    async def receive(self, envelope: Envelope) -> None:
        """Hook for subclasses: an envelope arrived. Must return soon; called in order of arrival."""

    async def receive_frame(self, frame: StreamFrame) -> None:
        """Hook for subclasses: a stream frame arrived."""

    async def joined(self) -> None:
        """Hook for subclasses: the gateway welcomed us, first or again."""

    # -- inside ------------------------------------------------------------------------------------------

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run something beside the connection, as long as the participant lives; its failure stops nothing else."""
        assert self._tasks is not None
        self._tasks.start_soon(self._run_guarded, function, args)

    async def _run_guarded(self, function: Callable[..., Coroutine[Any, Any, None]], args: tuple[Any, ...]) -> None:
        try:
            await function(*args)
        except MewAgentError as error:
            logger.warning("%s", error)
        except Exception:
            logger.exception("something beside the connection failed")

    def draft(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None,
        *,
        to: tuple[str, ...] = (),
        correlation_id: tuple[str, ...] = (),
        context: str | None = None,
    ) -> Envelope:
        """An envelope of ours with a new id, not sent."""
        return Envelope.write(
            kind,
            id=str(uuid4()),
            ts=timestamp(),
            sender=self.id,
            payload=payload,
            to=to,
            correlation_id=correlation_id,
            context=context,
        )

    async def _first_of_welcome_and_end(self) -> None:
        async with anyio.create_task_group() as race:

            async def first(event: anyio.Event) -> None:
                await event.wait()
                race.cancel_scope.cancel()

            race.start_soon(first, self._welcomed)
            race.start_soon(first, self._ended)
        if self._failure is not None:
            raise self._failure

    async def _stay_joined(self) -> None:
        try:
            await self._client.run(self._take)
        except MewAgentError as error:
            self._failure = error
        finally:
            self._ended.set()

    async def _take(self, message: Envelope | StreamFrame) -> None:
        """Everything that arrives. Nothing a peer writes ends the connection; the first welcome must be readable."""
        try:
            if isinstance(message, StreamFrame):
                await self.receive_frame(message)
            else:
                await self._take_envelope(message)
        except _UnreadableWelcome:
            raise
        except Exception:
            logger.exception("could not work on what arrived")

    async def _take_envelope(self, message: Envelope) -> None:
        known = self.peers.get(message.sender)
        peer = self.peers.receive(message)
        self._questions.receive(message)
        if message.kind == kinds.SYSTEM_WELCOME:
            await self._welcome(message)
        elif self.control.is_for_us(message):
            self.start_soon(self.control.obey, message)
        elif message.kind == kinds.MCP_REQUEST and message.names(self.id) and message.sender != self.id:
            self.start_soon(self._answer_request, message)
        elif (gone := who_left(message)) is not None:
            self._questions.left(gone)
        self.discovery.receive(message)
        await self.receive(message)
        self._events.tell(message, peer, LevelChange.between(peer, known))

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
        self._events.tell(None, None, LevelChange.between(me, Peer(self.id, context=before)))

    async def _answer_request(self, message: Envelope) -> None:
        payload = await answers.answer(message, self.offers, is_paused=self.control.is_paused)
        await self.send(kinds.MCP_RESPONSE, payload, to=(message.sender,), correlation_id=(message.id,))

    async def _close_streams(self, reason: str) -> None:
        """Hook for subclasses that own streams."""


Answer = TypeVar("Answer", bound=Payload)


def _read(answer: Envelope, model: type[Answer]) -> Answer:
    try:
        return read_payload(answer, model)
    except PayloadError as error:
        raise BadAnswer(answer.sender, str(error)) from None


def timestamp() -> str:
    """Now, as the wire writes it: RFC 3339 with milliseconds, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
