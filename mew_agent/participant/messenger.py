"""Sends the envelopes of a participant, and waits for their answers.

Owns the state that all parts of a participant share: id, peers, capabilities and pending requests. Checks capabilities
and pauses before sending, matches answers with requests, detects when no answer can come, and reads the answers to
`participant/compact`. Does not interpret other payloads.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar
from uuid import uuid4

import anyio
import anyio.abc
from mew_listener.bounded_dict import BoundedDict
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft, Envelope, wire_timestamp
from mew_protocol.errors import PayloadError
from mew_protocol.ids import GATEWAY, GATEWAY_IDS, Position
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.base import Payload
from mew_protocol.payloads.capability import Ended, EndedRights
from mew_protocol.payloads.chat import REFUSED, Acknowledge, Chat, ChatFailure, chat_refusal_in
from mew_protocol.payloads.participant import CompactDone, Status, is_preliminary, refusal_in
from mew_protocol.payloads.text_fit import Fit
from mew_protocol.status_word import status_word
from pydantic import BaseModel

from mew_agent import tracing
from mew_agent.errors import (
    AnswerLost,
    BadAnswer,
    ChatRefused,
    ControlRefused,
    GatewayError,
    MewAgentError,
    NotAccepted,
    NotPermitted,
    PeerAbsent,
    PeerError,
    PeerTimeout,
    Refused,
    message_of,
)
from mew_agent.participant.client import SEND_TIMEOUT_SECONDS, Client, Receive
from mew_agent.participant.peers import PeerChanges, Peers

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=Payload)


@dataclass(eq=False)
class PendingRequest:
    """An envelope to `peer` that waits for an envelope of kind `answer_kind`.

    `done` is set with `reply` (perhaps the gateway's refusal) or `failure`, whichever comes first.
    """

    sent: Envelope
    peer: str
    answer_kind: str
    done: anyio.Event = field(default_factory=anyio.Event)
    reply: Envelope | None = None
    failure: PeerError | None = None
    is_sent: bool = False
    """Whether the envelope was written to a connection."""
    is_echoed: bool = False
    """Whether the gateway relayed it: the sender of an envelope receives it, too."""
    is_done_once_echoed: bool = False
    decided: anyio.Event = field(default_factory=anyio.Event)
    """Set when the request is done; for a proposal already when it is decided about."""

    def receive(self, envelope: Envelope) -> str | None:
        """Check an envelope that refers to this request: only the peer can answer it; peer and gateway can refuse it.

        Returns the id of another envelope whose answers belong to this request, or None.
        """
        if (envelope.kind == self.answer_kind and envelope.sender == self.peer) or is_refusal(envelope):
            self.complete(reply=envelope)
        elif envelope.sender == self.peer and (problem := chat_refusal_in(envelope)) is not None:
            self.complete(failure=ChatRefused(self.peer, problem))
        return None

    def reply_or_raise(self, waited_seconds: float, detail: str = "") -> Envelope:
        """Return the answer. Raises a `PeerError` if there is none after `waited_seconds`."""
        if self.failure is not None:
            raise self.failure
        if self.reply is None:
            raise PeerTimeout(self.peer, self.sent.kind, waited_seconds, detail)
        if self.reply.kind != self.answer_kind and is_refusal(self.reply):
            error, message = self.reply.body.get("error"), self.reply.body.get("message")
            raise Refused(self.peer, self.sent.kind, str(error or "refused"), str(message or ""))
        return self.reply

    def complete(self, reply: Envelope | None = None, failure: PeerError | None = None) -> None:
        """Record the answer, or the reason for its absence, unless one is recorded."""
        if not self.done.is_set():
            self.reply, self.failure = reply, failure
            self.done.set()
            self.decided.set()


class CompactionRequest(PendingRequest):
    """A `participant/compact`; a peer without `participant/compact-done` reports the outcome in its status."""

    def __init__(self, sent: Envelope, peer: str) -> None:
        super().__init__(sent, peer, kinds.PARTICIPANT_COMPACT_DONE)

    def receive(self, envelope: Envelope) -> str | None:
        """See `PendingRequest.receive`. An outcome precedes the final status, and takes precedence."""
        is_status = envelope.kind == kinds.PARTICIPANT_STATUS and envelope.sender == self.peer
        if is_status and not is_preliminary(envelope, self.sent.kind):
            self.complete(reply=envelope)
        return super().receive(envelope)

    def outcome(self, waited_seconds: float) -> CompactDone:
        """Return the outcome. Raises the errors of `reply_or_raise`, and `BadAnswer`."""
        answer = self.reply_or_raise(waited_seconds)
        if answer.kind == kinds.PARTICIPANT_COMPACT_DONE:
            return read_answer(answer, CompactDone)
        return CompactDone.from_status(read_answer(answer, Status))


class ControlRequest(PendingRequest):
    """A control; a peer refuses it with a status."""

    def receive(self, envelope: Envelope) -> str | None:
        """See `PendingRequest.receive`."""
        is_status = envelope.kind == kinds.PARTICIPANT_STATUS and envelope.sender == self.peer
        if is_status and is_preliminary(envelope, self.sent.kind):
            return None
        if is_status and (problem := refusal_in(envelope.body.get("status"))) is not None:
            self.complete(failure=ControlRefused(self.peer, self.sent.kind, problem))
        return super().receive(envelope)


class RevocationRequest(PendingRequest):
    """A `capability/revoke`, complete when it returns to us. The gateway lists the ended rights before that."""

    def __init__(self, sent: Envelope) -> None:
        super().__init__(sent, GATEWAY, kinds.CAPABILITY_REVOKE, is_done_once_echoed=True)
        self.ended: tuple[EndedRights, ...] = ()

    def receive(self, envelope: Envelope) -> str | None:
        """See `PendingRequest.receive`."""
        if envelope.kind == kinds.CAPABILITY_ENDED and envelope.sender == GATEWAY:
            self.ended = read_answer(envelope, Ended).ended
        return super().receive(envelope)


class PendingRequests:
    """All pending requests of one participant, by the ids of their envelopes."""

    def __init__(self, me: str) -> None:
        self.me = me
        self._by_id: dict[str, PendingRequest] = {}

    @contextmanager
    def tracking(self, request: PendingRequest) -> Iterator[None]:
        """Match envelopes with the request while the block runs."""
        self._by_id[request.sent.id] = request
        try:
            yield
        finally:
            for name in [name for name, one in self._by_id.items() if one is request]:
                del self._by_id[name]

    def receive(self, envelope: Envelope, changes: PeerChanges) -> None:
        """Match an envelope with its requests. A leaving peer will not answer."""
        if not self._by_id:
            return
        if envelope.sender == self.me and (echoed := self._by_id.get(envelope.id)) is not None:
            echoed.is_echoed = True
            if echoed.is_done_once_echoed:
                echoed.complete(reply=envelope)
        for name in envelope.correlation_ids:
            waiting = self._by_id.get(name)
            if waiting is not None and (followed := waiting.receive(envelope)) is not None:
                # A peer chooses the id: it must not redirect the answers to another request of ours.
                self._by_id.setdefault(followed, waiting)
        # A welcome after a lost connection lists those who have returned; the others get some time, see `fail_absent`.
        if envelope.kind == kinds.SYSTEM_PRESENCE:
            gone = {peer.id for peer in changes.left}
            for request in self._open():
                if request.peer in gone:
                    request.complete(failure=PeerAbsent(request.peer, had_been_asked=True))

    def connected(self) -> None:
        """Fail requests of an earlier connection that the gateway did not relay: they may be lost."""
        for request in self._open():
            if request.is_sent and not request.is_echoed:
                request.complete(failure=AnswerLost(request.peer, request.sent.kind))

    def fail_absent(self, present: Collection[str], requests: Collection[PendingRequest]) -> None:
        """Fail open `requests` to peers that are not `present`."""
        for request in self._open():
            if request in requests and request.peer not in present:
                request.complete(failure=PeerAbsent(request.peer, had_been_asked=True))

    def to_peers(self) -> tuple[PendingRequest, ...]:
        """Return the open requests that a peer, not the gateway, has to answer."""
        return tuple(one for one in self._open() if one.peer not in GATEWAY_IDS and one.peer != self.me)

    def _open(self) -> tuple[PendingRequest, ...]:
        return tuple(dict.fromkeys(self._by_id.values()))


def is_refusal(envelope: Envelope) -> bool:
    """Return whether this is the gateway's refusal to relay the correlated envelope."""
    return envelope.kind == kinds.SYSTEM_ERROR and envelope.sender in GATEWAY_IDS


def read_answer(answer: Envelope, model: type[Answer]) -> Answer:
    """Read the payload of an answer. Raises `BadAnswer` naming the field."""
    try:
        return read_payload(answer, model)
    except PayloadError as error:
        raise BadAnswer(answer.sender, str(error)) from None


LEAVE_SECONDS = 3.0


class SpaceSession:
    """One participation in a space: `open` returns when the gateway has welcomed us."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.welcomed = anyio.Event()
        """Set when a readable welcome has arrived, and at the end, so that `open` waits no longer."""
        self.ended = anyio.Event()
        """Set when the connection has ended for good."""
        self._failure: Exception | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def was_opened(self) -> bool:
        """True from the call of `open` on."""
        return self._tasks is not None

    async def open(self, receive: Receive, handle_events: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        """Join and pass all arrivals to `receive`. Raises the error if joining is impossible.

        `handle_events` runs meanwhile, with a function that logs a failure; see `Listeners.run`.
        """
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            log_failure = partial(self.log_failure, what="event handler failed", traceback=True)
            await self._tasks.start(handle_events, log_failure)
            self._tasks.start_soon(self._stay_joined, receive)
            await self.welcomed.wait()
            if self._failure is not None:
                raise self._failure
        except BaseException:  # without a join there is no block that would call `close`
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
            # A task group would wrap the error, but the caller expects the original one.
            await self._tasks.__aexit__(None, None, None)
            return None
        return await self._tasks.__aexit__(kind, error, trace)

    async def run_forever(self) -> None:
        """Wait until the connection has ended for good. Raises the error that ended it, if there is one."""
        await self.ended.wait()
        if self._failure is not None:
            raise self._failure

    async def run_until_ended(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a program's main work until the connection ends for good. `run_forever` raises its failure."""
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
        """Log a failure of background work, named by `what`.

        At the end of a session, envelopes in flight stay unconfirmed and peers stay silent. Such failures are only
        logged at debug level: an ending program does not wait for background work.
        """
        is_expected = self.client.is_ending and isinstance(error, GatewayError | PeerError)
        logger.log(
            logging.DEBUG if is_expected else logging.ERROR if traceback else logging.WARNING,
            "%s",
            f"{what}: {message_of(error)}" if what else message_of(error),
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
CANCEL_SECONDS: Final = 2.0
"""How long sending a cancellation may take."""

LATE_CANCEL_SECONDS: Final = 600.0
"""How long a cancellation waits for a lost gateway in the background."""


class Messenger:
    """The shared state of a participant's parts, and the sender of their envelopes."""

    def __init__(self, id: str, session: SpaceSession) -> None:  # noqa: A002 - the wire's word
        self.id = id
        self.session = session
        self.peers = Peers(id)
        self.capabilities = CapabilitySet()
        self.pending = PendingRequests(id)
        self.answered_chats: BoundedDict[str, None] = BoundedDict(MAX_ANSWERED)
        """The ids that our newest chats refer to."""
        self.is_paused = False
        """Whether envelopes wait, except for the kinds in `kinds.ALLOWED_WHILE_PAUSED`."""
        self._resumed = anyio.Event()

    def pause(self) -> None:
        """Hold envelopes until `resume`."""
        if not self.is_paused:
            self.is_paused, self._resumed = True, anyio.Event()

    def resume(self) -> None:
        """End the pause: send held envelopes."""
        self.is_paused = False
        self._resumed.set()

    async def until_active(self) -> None:
        """Wait until the pause times out or a participant sends a resume."""
        while self.is_paused:  # a new pause may begin before this task runs again
            await self._resumed.wait()

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
        """Return an unsent envelope from us, with this `id` or a new one."""
        return Envelope.write(
            kind,
            id=id or str(uuid4()),
            ts=timestamp(),
            sender=self.id,
            payload=payload,
            to=to,
            correlation_id=correlation_id,
            context=context,
            traceparent=tracing.traceparent() if kind in tracing.CARRYING_KINDS else None,
        )

    def may_send(self, kind: str, payload: Mapping[str, Any] | None = None, to: tuple[str, ...] = ()) -> bool:
        """Return whether our capabilities cover such an envelope."""
        body = None if payload is None else dict(payload)
        return self.capabilities.allows(Draft(kind=kind, payload=body, to=tuple(to) or None))

    def not_permitted(self, kind: str, *, other_arguments: bool = False) -> MewAgentError:
        """Return why an envelope of this kind is not sent: we have not joined, or have no capability."""
        return self._not_joined() or NotPermitted(self.id, kind, other_arguments)

    def peer_absent(self, peer: str) -> MewAgentError:
        """Return why a peer cannot be asked: we have not joined, or it is not in the space."""
        return self._not_joined() or PeerAbsent(peer, known=tuple(self.peers))

    def _not_joined(self) -> MewAgentError | None:
        if self.session.was_opened:
            return None
        return GatewayError(f"'{self.id}' has not joined its space; enter it with `async with` first")

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
    ) -> Position | None:
        """Send an envelope made by `draft`. Raises the errors of `Participant.send`.

        Returns the position at which the gateway stored it; None if the gateway did not name one.
        """
        if not self.capabilities.allows(envelope):
            raise self.not_permitted(envelope.kind)
        if envelope.kind not in kinds.ALLOWED_WHILE_PAUSED:
            await self.until_active()
        if envelope.kind == kinds.CHAT:
            self.answered_chats.update(dict.fromkeys(envelope.correlation_ids))
        client = self.session.client
        if confirm:
            return await client.send(envelope, wait_seconds=wait_seconds)
        await client.send_unconfirmed(envelope, wait_seconds=wait_seconds)
        return None

    async def send_even_if_cancelled(self, envelope: Envelope) -> None:
        """Send an envelope that cancels our request, although the caller is often being cancelled itself.

        Waits a moment. If the gateway is away, it is sent later: the request would stay open, and be carried out.
        """
        with anyio.move_on_after(CANCEL_SECONDS, shield=True) as attempt, suppress(GatewayError, NotPermitted):
            await self.send_envelope(envelope)
        if attempt.cancelled_caught and not self.session.client.is_ending:
            self.session.start_soon(partial(self.send_envelope, envelope, wait_seconds=LATE_CANCEL_SECONDS))

    async def refuse_chat(
        self, chat: Envelope, problem: str, code: str | None = None, fit: Fit | None = None, **sending: Any
    ) -> None:
        """Refuse to answer a chat, with a reason for its sender; `code` and `fit` as in `Acknowledge`.

        Without the capability to acknowledge, send a chat with the code in `failure`. `sending` are arguments of
        `send`.
        """
        about: dict[str, Any] = {"to": (chat.sender,), "correlation_id": (chat.id,), **sending}
        if self.may_send(kinds.CHAT_ACKNOWLEDGE):
            await self.send(
                kinds.CHAT_ACKNOWLEDGE,
                Acknowledge(status=str(status_word("refused", problem)), code=code, fit=fit),
                **about,
            )
        elif self.may_send(kinds.CHAT):  # because its sender must not wait for an answer
            text, failure = REFUSED_TEXT.format(problem=problem), ChatFailure(code=code or REFUSED, problem=problem)
            await self.send(kinds.CHAT, Chat(text=text, needs_reply=False, failure=failure), **about)

    async def answer_to(self, request: PendingRequest, timeout_seconds: float) -> Envelope:
        """Send a request and return its answer. Raises the errors of `sent_request` and `reply_or_raise`."""
        with anyio.move_on_after(timeout_seconds):
            async with self.sent_request(request):
                await request.done.wait()
        return request.reply_or_raise(timeout_seconds)

    @asynccontextmanager
    async def sent_request(self, request: PendingRequest) -> AsyncIterator[None]:
        """Send a request, and match envelopes with it while the block runs.

        Raises `NotPermitted`, `PeerAbsent` if the peer is not here, and `NotConnected`.
        """
        if not self.capabilities.allows(request.sent):
            raise self.not_permitted(request.sent.kind)
        if request.peer not in self.peers and request.peer not in {self.id, *GATEWAY_IDS}:
            raise self.peer_absent(request.peer)
        with self.pending.tracking(request):
            try:
                await self.send_envelope(request.sent)
            except NotAccepted as refused:
                raise Refused(request.peer, request.sent.kind, refused.error, refused.detail) from None
            request.is_sent = True
            yield


def timestamp() -> str:
    """Return the current time as the wire writes it: RFC 3339 with milliseconds, UTC."""
    return wire_timestamp(datetime.now(UTC))
