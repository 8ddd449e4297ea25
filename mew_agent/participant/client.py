"""The connection of one participant to a gateway: connect, join, receive, send, and reconnect when it breaks.

Owns the WebSocket; the only module that imports `websockets`, whose errors become `GatewayError`s here. Interprets only
the envelopes about the connection: welcome, unauthorized, superseded.
"""

import logging
import random
import socket as sockets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from mew_protocol.codec import DEFAULT_MAX_BYTES, StreamFrame, decode
from mew_protocol.envelope import Envelope
from mew_protocol.errors import (
    CLOSE_NOT_FOUND,
    CLOSE_REMOVED,
    CLOSE_UNAUTHORIZED,
    NOT_STORED,
    OUTCOME_UNKNOWN,
    SPACE_NOT_FOUND,
    SUPERSEDED,
    UNAUTHORIZED,
    DecodeError,
)
from mew_protocol.ids import GATEWAY, Position
from mew_protocol.join import JOIN_BY_FRAME, JOIN_HEADER, DeliveryRequest, join_frame
from mew_protocol.kinds import SYSTEM_ERROR, SYSTEM_PRESENCE_BATCH, SYSTEM_WELCOME
from mew_settings.backoff import backoff_seconds
from pydantic_core import to_json
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from mew_agent.certificates import tls_failure, trust
from mew_agent.errors import GatewayError, NotAccepted, NotConfirmed, NotConnected, Superseded, TooLarge, Unauthorized
from mew_agent.failed_connections import gateway_cause
from mew_agent.gateway_address import addresses, is_loopback, websocket_url
from mew_agent.participant.confirmed_delivery import (
    UNCONFIRMED_KINDS,
    Arrival,
    Arrived,
    ConfirmedDelivery,
    Message,
    OutgoingEnvelope,
    presences_in,
)
from mew_agent.participant.sized_queue import SizedQueue

logger = logging.getLogger(__name__)

MAX_RETRY_AFTER_SECONDS = 60.0
"""Longest pause that a gateway may ask for before we try to join again."""


class TryLater(OSError):
    """The gateway admits no members now, and names a pause in seconds."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials to join: the gateway's URL, the space, the participant's id, and its token (never shown).

    `gateway` may name several gateways of the space, separated by commas, and may use http(s)://; anything else raises
    `ConfigError`. `ca_file`: certificates to trust.
    """

    gateway: str
    space: str
    participant: str
    token: str = field(repr=False)
    ca_file: str | Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gateway", websocket_url(self.gateway))

    def raise_if_rejected(self, error: Envelope, *, is_joined: bool) -> None:
        """Raise a `GatewayError` for a final refusal by the gateway, and `TryLater` for a temporary one."""
        detail = str(error.body.get("message") or "")
        seconds = error.body.get("retry_after_seconds")
        match error.body.get("error"):
            case str(code) if code == SUPERSEDED:
                # The newest connection wins. Joining again would end it, and the two would alternate forever.
                raise Superseded(self.participant)
            case _ if is_joined:
                return  # the error is about an envelope of ours
            case str(code) if code == UNAUTHORIZED:
                raise Unauthorized(self.participant, detail)
            case str(code) if code == SPACE_NOT_FOUND:
                raise GatewayError(detail or self._no_space)
            case _ if isinstance(seconds, int | float):
                raise TryLater(detail, max(0.0, min(seconds, MAX_RETRY_AFTER_SECONDS)))
            case _:
                return

    def raise_if_closed_for_good(self, close_code: int | None, http_status: int | None) -> None:
        """Raise a `GatewayError` if the code of a closed socket, or the HTTP status of a refused one, is final."""
        # Proxies and other gateways refuse a token with a plain HTTP status, before a socket exists.
        if http_status in (401, 403) or close_code == CLOSE_UNAUTHORIZED:
            raise Unauthorized(self.participant) from None
        if close_code == CLOSE_NOT_FOUND:
            raise GatewayError(self._no_space) from None
        if close_code == CLOSE_REMOVED:
            raise GatewayError(f"'{self.participant}' was removed from the space") from None

    @property
    def _no_space(self) -> str:
        return f"no space '{self.space}' at {self.gateway}"


JOIN_TIMEOUT_SECONDS = 20.0
"""Longer than a gateway waits for a join by default, so that the gateway decides."""
CLOSE_TIMEOUT_SECONDS = 2.0
SEND_TIMEOUT_SECONDS = 30.0
HEARTBEAT_SECONDS = 4.0
"""Interval of pings, and how long an answer may take: a dead link is noticed within 8 seconds."""
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 3.0
_REPEATED = (NOT_STORED, OUTCOME_UNKNOWN)
NOT_STORED_FIRST_SECONDS = 0.25
INBOX_MESSAGES = 10_000
INBOX_BYTES = 64 * 1024 * 1024
"""How many messages, and how much of them, may wait to be processed before reading pauses."""
_UNREAD_MESSAGES = 16
"""How many more the socket reads ahead: each may have the greatest size."""
_SHORTEST_ATTEMPT_SECONDS = 0.05
_MESSAGE_TOO_BIG = 1009
_CLOSED = (ConnectionClosed, AttributeError)
"""What sending and closing raise on a closed connection.

`websockets` aborts its transport then. In asyncio of CPython 3.11 to 3.13 this fails if the transport ended after it
had written its buffer: it has no event loop any more.
"""

Receive = Callable[[Message], Awaitable[None]]


class Client:
    """A connection with reconnects and confirmed envelopes.

    `run` connects, joins and passes every message to `receive` until `aclose`. It reconnects after growing delays with
    jitter and continues at its position: missed envelopes arrive late, in order, once. With a gateway without numbered
    delivery, an envelope counts as sent once written, and missed envelopes are lost.

    With several gateways it starts at a random one, to spread the members, and moves to the next when a connection ends
    or fails.

    It raises if reconnecting is pointless: `Unauthorized`, `Superseded`, removal from the space, `CertificateRejected`
    before the first welcome, or no first connection within `first_connect_seconds`.
    """

    credentials: Credentials
    delivery: ConfirmedDelivery

    def __init__(self, credentials: Credentials | None, *, first_connect_seconds: float = 10.0) -> None:
        """Without `credentials`, call `use` before `run`."""
        self.has_credentials = False
        if credentials is not None:
            self.use(credentials)
        self.first_delivery = DeliveryRequest(batches_presence=True)
        """The past envelopes for the first connection; set it before `run`. Later connections bring the missed ones."""
        self.arrived = Arrived()
        """The current or last event that is passed on."""
        self.caught_up = anyio.Event()
        """Set when everything that was missed before the first connection has been passed on."""
        self._first_connect_seconds = first_connect_seconds
        self._socket: ClientConnection | None = None
        self._joined = anyio.Event()
        self._run_scope: anyio.CancelScope | None = None  # created later: it needs an event loop
        self._inbox: SizedQueue[Arrived]  # set by `run`
        self._closing = False
        self._over = False
        self.on_lost: Callable[[str], None] = lambda cause: None
        """Called with the cause when a joined connection broke and is being restored."""
        self.joins = 0
        """The number of joined connections; a second welcome on one connection does not count."""
        self.carrier: int | None = None
        """The number of the connection that carries envelopes and frames now; None without one."""
        self.catching_up: int | None = None
        """How many missed envelopes a welcomed connection has brought so far, if more follow; None otherwise."""
        self._last_cause = "not joined yet"

    def use(self, credentials: Credentials) -> None:
        """Join with these credentials; call it before `run`."""
        self.credentials, self.has_credentials = credentials, True
        self.gateways = deque(addresses(credentials.gateway))  # the first one is in use
        self.gateways.rotate(random.randrange(len(self.gateways)))  # noqa: S311 - no secret
        self.delivery = ConfirmedDelivery(credentials.participant)

    @property
    def is_joined(self) -> bool:
        """True if a connection is welcomed and all missed envelopes have arrived."""
        return self._socket is not None

    @property
    def is_ending(self) -> bool:
        """Whether we are leaving or the connection has ended for good."""
        return self._closing or self._over

    async def run(self, receive: Receive) -> None:
        """Stay joined until closed. Raises a `GatewayError` if that is impossible, and the errors of `receive`."""
        inbox: SizedQueue[Arrived] = SizedQueue(INBOX_MESSAGES, INBOX_BYTES)
        failures: list[Exception] = []

        async def pass_on() -> None:
            # A separate task, so that receivers may wait for the confirmation of their messages.
            try:
                async for self.arrived in inbox:
                    if self.arrived.message is None:
                        self.caught_up.set()
                    else:
                        await receive(self.arrived.message)
            except Exception as error:
                failures.append(error)
                tasks.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as tasks:
                self._run_scope, self._inbox = tasks.cancel_scope, inbox
                tasks.start_soon(pass_on)
                try:
                    if not self._closing:
                        await self._stay_joined()
                except Exception as error:
                    failures.append(error)
                inbox.close()  # `pass_on` ends after all arrived envelopes
        finally:
            # Wake the senders that wait for another connection; there will be none.
            self._over = True
            self._joined.set()
            self.delivery.abandon()
        if failures:
            raise failures[0]

    async def send(self, envelope: Envelope, *, wait_seconds: float = SEND_TIMEOUT_SECONDS) -> Position | None:
        """Send an envelope and wait until the gateway has accepted it.

        Returns the position at which the gateway stored it; None if the gateway numbers nothing, or not this envelope.
        It is sent again under the same id after a lost connection, and members get it once. Raises `NotConnected` if it
        was never written within `wait_seconds`, `NotConfirmed` if the gateway may or may not have it, `NotAccepted` if
        the gateway refused it, and `TooLarge` if it exceeds the protocol's or the gateway's limit.
        """
        data = envelope.encode()
        if len(data) > DEFAULT_MAX_BYTES:
            raise TooLarge(len(data), DEFAULT_MAX_BYTES)
        sent = OutgoingEnvelope(envelope, data.decode(), len(data))
        with self.delivery.tracking(sent):
            with anyio.move_on_after(wait_seconds):
                attempt = 0
                while await self._write(sent):
                    if self.delivery.position is None or envelope.kind in UNCONFIRMED_KINDS:
                        return None
                    await sent.done.wait()
                    if not isinstance(sent.error, NotAccepted) or sent.error.error not in _REPEATED:
                        break
                    # The gateway cannot store it now, so send it again later.
                    attempt += 1
                    await anyio.sleep(backoff_seconds(attempt, NOT_STORED_FIRST_SECONDS, BACKOFF_MAX_SECONDS))
                    sent.retry()  # before the write: the decision may arrive before `_write` returns
                if sent.error is not None:
                    raise sent.error
                if sent.is_accepted:
                    return sent.position
            if sent.is_written:
                raise NotConfirmed(envelope, self._last_cause)
            raise NotConnected(self.credentials.gateway, self._last_cause)

    async def send_unconfirmed(
        self,
        message: Envelope | bytes | str,
        *,
        wait_seconds: float = SEND_TIMEOUT_SECONDS,
        only_on: int | None = None,
    ) -> None:
        """Write an envelope or a raw stream frame once. It may be lost if the connection breaks.

        `only_on` is the number of the only connection (see `joins`) that may carry it: on a later one, it would
        overtake a lost frame. Raises `NotConnected` if there is no connection within `wait_seconds`, and `TooLarge`.
        """
        raw = message.encode().decode() if isinstance(message, Envelope) else message
        if (size_bytes := len(raw.encode()) if isinstance(raw, str) else len(raw)) > DEFAULT_MAX_BYTES:
            raise TooLarge(size_bytes, DEFAULT_MAX_BYTES)
        with anyio.move_on_after(wait_seconds):
            while not self._over:
                await self._joined.wait()
                socket = self._socket
                if only_on not in (None, self.joins):
                    break
                if socket is not None and await self._written(socket, raw):
                    return
        raise NotConnected(self.credentials.gateway, self._last_cause)

    async def _write(self, sent: OutgoingEnvelope) -> bool:
        """Write an envelope. With numbered delivery, a lost connection repeats it. Returns False if no connection will
        ever come.
        """
        while not self._over:
            await self._joined.wait()
            socket = self._socket
            if socket is None:  # lost again before this task ran
                continue
            sent.is_written = True  # from here on the gateway may have received it
            if await self._written(socket, sent.text) or self.delivery.position is not None:
                return True
            sent.is_written = False  # a plain gateway: our own send failed, so write it again
        return False

    async def _written(self, socket: ClientConnection, raw: str | bytes) -> bool:
        try:
            await socket.send(raw)
        except _CLOSED as error:
            self._last_cause = "the connection broke" if isinstance(error, AttributeError) else gateway_cause(error)
            self._lose(socket)
            return False
        return True

    async def aclose(self) -> None:
        """Leave: close the socket; `run` then returns."""
        self._closing = True
        try:
            if self._socket is not None:
                with suppress(OSError, *_CLOSED):
                    await self._socket.close()
        finally:
            if self._run_scope is not None:
                self._run_scope.cancel()

    async def _stay_joined(self) -> None:
        attempt = 0
        give_up_at = anyio.current_time() + self._first_connect_seconds
        while True:
            # All attempts before the first welcome share the caller's limit; each later attempt has its own.
            left = JOIN_TIMEOUT_SECONDS if self.joins else max(0.0, give_up_at - anyio.current_time())
            # Try another gateway before a silent gateway uses up the time.
            attempt_seconds = min(left, JOIN_TIMEOUT_SECONDS) / len(self.gateways)
            retry_after: float | None = None
            try:
                async with self._connected(attempt_seconds) as socket:
                    await self._join(socket, attempt_seconds)
                    attempt = 0
                    async for raw in socket:
                        await self._receive(socket, raw)
                    self._last_cause = "the gateway closed the connection"
            except (OSError, TimeoutError, UnicodeError, WebSocketException) as error:
                self._note_failure(error, attempt, left)
                retry_after = error.seconds if isinstance(error, TryLater) else None
            finally:
                self._lose(self._socket)
            if self._closing:
                return
            attempt += 1
            self.gateways.rotate(-1)
            delay = self._delay_seconds(attempt, retry_after)
            if not self.joins:
                left = give_up_at - anyio.current_time()
                if left < _SHORTEST_ATTEMPT_SECONDS:
                    raise NotConnected(self.credentials.gateway, self._last_cause)
                delay = min(delay, left / 2)  # leaves time for one more attempt
            await anyio.sleep(delay)
            logger.log(
                logging.INFO if self.joins else logging.DEBUG,
                "reconnecting to %s (%s)",
                self.gateways[0],
                self._last_cause,
            )

    def _delay_seconds(self, attempts: int, retry_after: float | None) -> float:
        """Return the pause in seconds after this many attempts, considering the gateway's `retry_after`."""
        jitter = random.random()  # noqa: S311 - no secret
        if retry_after is not None:
            return retry_after * (1 + 0.1 * jitter)
        rounds = -(-attempts // len(self.gateways))  # delays grow with each round through all gateways
        return backoff_seconds(rounds, BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS, jitter)

    def _note_failure(self, error: Exception, attempts: int, seconds: float) -> None:
        """Note why a connection, or an attempt after `attempts` others within this limit in seconds, failed.

        Raises a `GatewayError` if reconnecting is pointless.
        """
        # The last attempts before the limit are short: earlier errors say more than their timeout.
        is_cut_short = attempts > 0 and not self.joins and seconds < self._first_connect_seconds / 2
        if not (is_cut_short and isinstance(error, TimeoutError)):
            self._last_cause = gateway_cause(error)
        self._raise_if_reconnecting_is_pointless(error)
        if _code(error) == _MESSAGE_TOO_BIG:
            self.delivery.refuse_largest()

    def _lose(self, socket: ClientConnection | None) -> None:
        """Drop a broken connection, so that senders wait for the next one."""
        self.catching_up = None
        if socket is not None and socket is self._socket:
            self._socket = self.carrier = None
            self._joined = anyio.Event()
            if not self._closing:
                self.on_lost(self._last_cause)

    @asynccontextmanager
    async def _connected(self, open_seconds: float) -> AsyncIterator[ClientConnection]:
        """Connect; the connection is closed at the end of the block, even if the task is cancelled."""
        gateway = self.gateways[0]
        socket = await connect(
            gateway,
            ssl=trust(self.credentials.ca_file) if gateway.startswith("wss:") else None,
            # Send both: strict gateways refuse a handshake without the header, the TypeScript gateway ignores headers.
            additional_headers={"Authorization": f"Bearer {self.credentials.token}", JOIN_HEADER: JOIN_BY_FRAME},
            # A gateway writes the same bytes to all members; with compression it would write once for each.
            compression=None,
            # `websockets` would use a system's proxy for loopback too, which is then the proxy's own machine.
            proxy=None if is_loopback(urlsplit(gateway).hostname or "") else True,
            max_size=DEFAULT_MAX_BYTES,
            max_queue=_UNREAD_MESSAGES,
            open_timeout=open_seconds,
            ping_interval=HEARTBEAT_SECONDS,
            ping_timeout=HEARTBEAT_SECONDS,
            close_timeout=CLOSE_TIMEOUT_SECONDS,
        )
        if hasattr(sockets, "TCP_USER_TIMEOUT"):
            # With a full buffer, `websockets` sends no ping, so the system has to notice a gateway that reads nothing.
            unread_milliseconds = int(2 * HEARTBEAT_SECONDS * 1000)
            socket.transport.get_extra_info("socket").setsockopt(
                sockets.IPPROTO_TCP, sockets.TCP_USER_TIMEOUT, unread_milliseconds
            )
        try:
            yield socket
        finally:
            with anyio.CancelScope(shield=True), suppress(*_CLOSED):
                await socket.close()

    async def _join(self, socket: ClientConnection, wait_seconds: float) -> None:
        """Send the join frame and wait for our welcome; passes on earlier messages."""
        mine, wanted = self.credentials, self.first_delivery
        if self.delivery.position is not None:
            wanted = wanted._replace(since=str(self.delivery.position))
        frame = join_frame(space=mine.space, participant=mine.participant, token=mine.token, delivery=wanted)
        with anyio.fail_after(wait_seconds):
            await socket.send(to_json(frame).decode())
            welcome = await self._receive_welcome(socket)
        self.joins += 1
        is_live = self.delivery.begin(welcome)
        await self._inbox.put(Arrived(welcome, self.delivery.position))
        await self._put_gaps(welcome)
        self.catching_up = 0
        if is_live:
            await self._go_live(socket)

    async def _go_live(self, socket: ClientConnection) -> None:
        """After all missed envelopes have arrived, repeat our undecided ones in order, then allow new ones."""
        await self._inbox.put(Arrived(position=self.delivery.position))
        if self.delivery.position is not None:
            # Before new envelopes, so that members receive all in the order of sending.
            for sent in self.delivery.undecided():
                if not await self._written(socket, sent.text):
                    return
        if self.catching_up:
            logger.info("caught up with %d missed envelopes", self.catching_up)
        self._socket, self.carrier, self.catching_up = socket, self.joins, None
        self._joined.set()

    async def _all_arrived(self, socket: ClientConnection, receipt: Envelope) -> None:
        """Report lost frames, and go live. Gateways repeat this message after a loss of frames between them."""
        await self._put_gaps(receipt)
        if self._socket is None:
            await self._go_live(socket)

    async def _put_gaps(self, envelope: Envelope) -> None:
        for gap in self.delivery.gaps_in(envelope):
            await self._inbox.put(Arrived(gap, self.delivery.position))

    async def _receive_welcome(self, socket: ClientConnection) -> Envelope:
        while True:
            raw = await socket.recv()
            message = _read(raw)
            if message is None:
                continue
            if isinstance(message, Envelope):
                if message.kind == SYSTEM_ERROR and message.sender == GATEWAY:
                    self.credentials.raise_if_rejected(message, is_joined=False)
                if message.kind == SYSTEM_WELCOME and message.is_for(self.credentials.participant):
                    return message
            else:
                self.delivery.frames.add(message.stream_id)
            await self._inbox.put(Arrived(message, size_bytes=len(raw)), len(raw))

    async def _receive(self, socket: ClientConnection, raw: bytes | str) -> None:
        message, size_bytes, delivery = _read(raw), len(raw), self.delivery
        if not isinstance(message, Envelope):
            if message is not None:
                delivery.frames.add(message.stream_id)
                frame = Arrived(message, delivery.position, age_seconds=delivery.age_seconds, size_bytes=size_bytes)
                await self._inbox.put(frame, size_bytes)
            return
        if message.kind == SYSTEM_ERROR and message.sender == GATEWAY:
            self.credentials.raise_if_rejected(message, is_joined=self.is_joined)
        arrival = delivery.receive(message)
        if arrival is Arrival.GO_LIVE:
            await self._all_arrived(socket, message)
        if arrival in (Arrival.GO_LIVE, Arrival.SKIP):
            return
        if self.catching_up is not None:
            self.catching_up += 1
        is_past = arrival is Arrival.PASS_ON_AS_PAST
        arrived = Arrived(message, delivery.position, is_past, delivery.age_seconds, size_bytes)
        if message.kind != SYSTEM_PRESENCE_BATCH or message.sender != GATEWAY:
            await self._inbox.put(arrived, size_bytes)
        else:
            await self._put_presences(message, arrived)

    async def _put_presences(self, batch: Envelope, arrived: Arrived) -> None:
        presences = tuple(presences_in(batch))
        for presence in presences:
            share_bytes = arrived.size_bytes // len(presences)
            one = arrived._replace(message=presence, age_seconds=0.0, size_bytes=share_bytes)
            await self._inbox.put(one, share_bytes)

    def _raise_if_reconnecting_is_pointless(self, error: Exception) -> None:
        failed_handshake = tls_failure(self.gateways[0], error)
        if failed_handshake is not None:
            if not self.joins:
                raise failed_handshake from None
            self._last_cause = str(failed_handshake)  # the certificate may be in renewal
        status = error.response.status_code if isinstance(error, InvalidStatus) else None
        self.credentials.raise_if_closed_for_good(_code(error), status)


def _read(raw: bytes | str) -> Envelope | StreamFrame | None:
    """Decode a message of the gateway; logs and skips an unreadable one."""
    try:
        message = decode(raw)
    except DecodeError as error:
        logger.warning("skipped an unreadable message from the gateway: %s", error)
        return None
    if isinstance(message, Envelope | StreamFrame):
        return message
    return Envelope.complete(message, id="", ts="", sender=str(GATEWAY))


def _code(error: Exception) -> int | None:
    """Return the gateway's close code, if it sent one."""
    return error.rcvd.code if isinstance(error, ConnectionClosed) and error.rcvd else None
