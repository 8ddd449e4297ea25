"""Sends the envelopes of a participant, and waits for their answers.

Owns what all parts of a participant share: its id, its peers, its capabilities and its pending requests; and that
nothing is sent that the capabilities do not cover, or that has to wait during a pause. Does not know what payloads
mean.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Final
from uuid import uuid4

import anyio
import anyio.abc
from mew_protocol import kinds
from mew_protocol.bounded_dict import BoundedDict
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft, Envelope, wire_timestamp
from mew_protocol.ids import GATEWAY_IDS
from mew_protocol.payloads.chat import Acknowledge
from mew_protocol.status_word import status_word
from pydantic import BaseModel

from mew_agent import tracing
from mew_agent.errors import GatewayError, MewAgentError, NotAccepted, NotPermitted, PeerAbsent, PeerError, Refused
from mew_agent.participant.client import SEND_TIMEOUT_SECONDS, Client, Receive
from mew_agent.participant.gaps import ConnectionLost
from mew_agent.participant.listeners import Listeners
from mew_agent.participant.peers import Peers
from mew_agent.participant.requests import PendingRequest, PendingRequests

logger = logging.getLogger(__name__)


LEAVE_SECONDS = 3.0


class SpaceSession:
    """One participation in a space: `open` returns when the gateway has welcomed us."""

    def __init__(self, client: Client, listeners: Listeners) -> None:
        self.client = client
        self._listeners = listeners
        client.on_lost = lambda cause: listeners.emit(None, ConnectionLost(cause))
        self.welcomed = anyio.Event()
        """Set when a readable welcome has arrived, and at the end, so that `open` waits no longer."""
        self.ended = anyio.Event()
        """Set when the connection has ended for good."""
        self._failure: Exception | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    async def open(self, receive: Receive) -> None:
        """Join and pass everything that arrives to `receive`. Raises the error that makes joining impossible."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            log_failure = partial(self.log_failure, what="event handler failed", traceback=True)
            await self._tasks.start(self._listeners.run, log_failure)
            self._tasks.start_soon(self._stay_joined, receive)
            await self.welcomed.wait()
            if self._failure is not None:
                raise self._failure
        except BaseException:  # without a join there is no block, whose end would call `close`
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)
            raise

    async def close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Leave, and end all tasks. The arguments and the result are as for `__aexit__`."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(LEAVE_SECONDS):
            await self.client.aclose()
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        if isinstance(error, Exception):
            # A task group would wrap the error; the author of the block wants to catch what was raised.
            await self._tasks.__aexit__(None, None, None)
            return None
        return await self._tasks.__aexit__(kind, error, trace)

    async def run_forever(self) -> None:
        """Wait until the connection has ended for good. Raises the error that ended it, if there is one."""
        await self.ended.wait()
        if self._failure is not None:
            raise self._failure

    async def run_until_ended(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the main work of a program until the connection ends for good. `run_forever` raises its failure."""
        async with anyio.create_task_group() as tasks:

            async def end_with_connection() -> None:
                await self.ended.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end_with_connection)
            try:
                await work()
            except Exception as error:
                logger.exception("leaving the space: unexpected error")
                self._failure = self._failure or error
                await self.client.aclose()

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Run a task for as long as the session lasts. Its failure is logged and ends nothing else."""
        assert self._tasks is not None
        self._tasks.start_soon(self._run_logging_failures, function, args)

    async def _run_logging_failures(self, function: Callable[..., Coroutine[Any, Any, object]], args: Any) -> None:
        try:
            await function(*args)
        except MewAgentError as error:
            self.log_failure(error)
        except Exception:
            logger.exception("background task failed")

    def log_failure(self, error: Exception, what: str = "", *, traceback: bool = False) -> None:
        """Log a failure of background work, which `what` names, if given.

        At the end of a session envelopes in flight stay unconfirmed and peers stay silent. That is logged for debugging
        only: a program that ends does not wait for its background work.
        """
        is_expected = self.client.is_ending and isinstance(error, GatewayError | PeerError)
        text = f"{what}: {error}" if what else str(error)
        logger.log(
            logging.DEBUG if is_expected else logging.ERROR if traceback else logging.WARNING,
            "%s",
            text,
            exc_info=error if traceback else None,
        )

    async def _stay_joined(self, receive: Receive) -> None:
        try:
            await self.client.run(receive)
        except MewAgentError as error:
            self._failure = self._failure or error
        finally:
            self.ended.set()
            self.welcomed.set()


REFUSED_TEXT: Final = "I do not answer this message: {problem}."
MAX_ANSWERED: Final = 1_000


class Messenger:
    """The shared state of a participant's parts, and their sending."""

    def __init__(self, id: str, session: SpaceSession) -> None:  # noqa: A002 - the wire's word
        self.id = id
        self.session = session
        self.peers = Peers(id)
        self.capabilities = CapabilitySet()
        self.pending = PendingRequests(id)
        self.answered_chats: BoundedDict[str, None] = BoundedDict(MAX_ANSWERED)
        """The ids that our newest chats refer to."""
        self._active = anyio.Event()
        self._active.set()

    @property
    def is_paused(self) -> bool:
        """Whether envelopes wait, except for the kinds in `kinds.ALLOWED_WHILE_PAUSED`."""
        return not self._active.is_set()

    def pause(self) -> None:
        """Hold envelopes until `resume`."""
        if not self.is_paused:
            self._active = anyio.Event()

    def resume(self) -> None:
        """Send again."""
        self._active.set()

    async def until_active(self) -> None:
        """Wait until not paused: until the pause times out or a participant sends a resume."""
        while self.is_paused:  # a new pause may begin before this task runs again
            await self._active.wait()

    def draft(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None,
        *,
        to: tuple[str, ...] = (),
        correlation_id: tuple[str, ...] = (),
        context: str | None = None,
        id: str | None = None,  # noqa: A002 - the wire's word
    ) -> Envelope:
        """Return an envelope from us, not sent; without `id` it gets a new one."""
        return Envelope.write(
            kind,
            id=id or str(uuid4()),
            ts=timestamp(),
            sender=self.id,
            payload=payload,
            to=to,
            correlation_id=correlation_id,
            context=context,
            traceparent=tracing.traceparent_for(kind),
        )

    def may_send(self, kind: str, payload: Mapping[str, Any] | None = None, to: tuple[str, ...] = ()) -> bool:
        """Return whether our capabilities cover such an envelope."""
        body = None if payload is None else dict(payload)
        return self.capabilities.allows(Draft(kind=kind, payload=body, to=tuple(to) or None))

    async def send(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None = None,
        *,
        to: tuple[str, ...] | list[str] | str = (),
        correlation_id: tuple[str, ...] = (),
        context: str | None = None,
        id: str | None = None,  # noqa: A002 - the wire's word
        wait_seconds: float = SEND_TIMEOUT_SECONDS,
        confirm: bool = True,
    ) -> Envelope:
        """Send one envelope and return it; see `Participant.send`."""
        addressees = (to,) if isinstance(to, str) else tuple(to)
        envelope = self.draft(kind, payload, to=addressees, correlation_id=correlation_id, context=context, id=id)
        await self.send_envelope(envelope, wait_seconds=wait_seconds, confirm=confirm)
        return envelope

    async def send_envelope(
        self, envelope: Envelope, *, wait_seconds: float = SEND_TIMEOUT_SECONDS, confirm: bool = True
    ) -> None:
        """Send an envelope made by `draft`. Raises the errors of `Participant.send`."""
        self._check_permission(envelope)
        if envelope.kind not in kinds.ALLOWED_WHILE_PAUSED:
            await self.until_active()
        if envelope.kind == kinds.CHAT:
            self.answered_chats.update(dict.fromkeys(envelope.correlation_ids))
        client = self.session.client
        await (client.send if confirm else client.send_unconfirmed)(envelope, wait_seconds=wait_seconds)

    async def refuse_chat(self, chat: Envelope, problem: str, code: str | None = None) -> None:
        """Tell the sender of a chat that no answer follows, and why; `code` as in `Acknowledge`."""
        about: dict[str, Any] = {"to": (chat.sender,), "correlation_id": (chat.id,)}
        if self.may_send(kinds.CHAT_ACKNOWLEDGE):
            await self.send(
                kinds.CHAT_ACKNOWLEDGE,
                Acknowledge(status=str(status_word("refused", f" {problem}")), code=code),
                **about,
            )
        elif self.may_send(kinds.CHAT):  # its sender must not wait for an answer
            text = REFUSED_TEXT.format(problem=problem)
            await self.send(kinds.CHAT, {"text": text, "needs_reply": False}, **about)

    async def ask(
        self, kind: str, payload: BaseModel | Mapping[str, Any] | None, *, to: str, answer: str, timeout_seconds: float
    ) -> Envelope:
        """Send an envelope and wait for its answer; see `Participant.ask`."""
        request = PendingRequest(self.draft(kind, payload, to=(to,)), to, answer)
        await self.send_and_wait(request, timeout_seconds)
        return request.reply_or_raise(timeout_seconds)

    async def send_and_wait(self, request: PendingRequest, timeout_seconds: float) -> None:
        """Send a request and wait until it is done, or the time is over. Raises the errors of `sent_request`."""
        with anyio.move_on_after(timeout_seconds):
            async with self.sent_request(request):
                await request.done.wait()

    @asynccontextmanager
    async def sent_request(self, request: PendingRequest) -> AsyncIterator[None]:
        """Send a request, and match envelopes with it while the block runs.

        Raises `NotPermitted`, `PeerAbsent` if the peer is not here, and `NotConnected`.
        """
        self._check_permission(request.sent)
        if request.peer not in self.peers and request.peer not in {self.id, *GATEWAY_IDS}:
            raise PeerAbsent(request.peer)
        with self.pending.tracking(request):
            try:
                await self.send_envelope(request.sent)
            except NotAccepted as refused:
                raise Refused(request.peer, request.sent.kind, refused.error, refused.detail) from None
            request.is_sent = True
            yield

    def _check_permission(self, envelope: Envelope) -> None:
        if not self.capabilities.allows(envelope):
            raise NotPermitted(self.id, envelope.kind)


def timestamp() -> str:
    """Return the current time as the wire writes it: RFC 3339 with milliseconds, UTC."""
    return wire_timestamp(datetime.now(UTC))
