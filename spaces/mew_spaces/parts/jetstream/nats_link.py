"""A connection to one server of a NATS cluster, restored whenever it is lost.

Connects with `nats-py`, and translates its errors into those of a backplane. Each connection is a new client, because
the reconnection of `nats-py` sends messages of an outage after callers have given up, and some errors end it for good.
"""

import asyncio
import logging
import os
import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import anyio
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from mew_spaces.parts.jetstream.backplane import BackplaneError, BackplaneRefused, BackplaneUnavailable, Conflict
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions
from mew_spaces.parts.jetstream.nats_login import NatsLogin

log = logging.getLogger("mew_spaces")

_RETRY_SECONDS: Final = 0.2
_CLOSE_SECONDS: Final = 1.0

_LINK_ERRORS: Final = (nats.errors.Error, OSError, RuntimeError)
"""Errors of `nats-py` when a connection fails: `RuntimeError` if `uvloop` has just closed the transport."""

_WRONG_REVISION: Final = (10071, 10164)
_NO_PEERS: Final = 10005  # a cluster may also be starting

_STORAGE: Final = (
    "give it more storage, or lower limits.history_bytes in space.yaml: a space needs twice that and 64 MiB"
)

_HINTS: Final = {
    10002: _STORAGE, 10023: _STORAGE, 10047: _STORAGE, 10122: _STORAGE,
    10027: "a space needs three streams",
    10039: "enable JetStream for the account, or use credentials of another one",
    10074: "set 'replicas' of 'backplane' to 1, or name the servers of a cluster",
    10076: "start the server with JetStream",
}  # fmt: skip
"""The advice about an error of JetStream, by its number."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Time limits in seconds."""

    start: float = 10.0
    """How long the first connection may take: NATS and gateways are often started together."""
    connect: int = 2
    request: float = 3.0
    ping: float = 1.0
    pong: float = 3.0
    """A server that does not answer for so long is left for another one."""
    heartbeat: float = 0.5
    silence: float = 2.5
    """A reader without a message or heartbeat for this time asks another server."""


logging.getLogger("nats").setLevel(logging.CRITICAL)  # its messages are raised as errors and logged here


class _EachMessage(asyncio.Future[Msg]):
    """Passes each message of a subscription to a function at once, without the queue and the additional task of
    `nats-py`.
    """

    def __init__(self, receive: Callable[[Msg], object]) -> None:
        super().__init__()
        self._receive = receive

    def set_result(self, result: Msg, /) -> None:
        self._receive(result)


@dataclass(eq=False)
class LinkSubscription:
    """Messages of a subject, until the connection is lost or it is closed."""

    receive: Callable[[Msg | None], object]
    _connection: "_LinkedClient"
    _vendor: Subscription

    async def close(self) -> None:
        """End it. May be called after the connection was lost."""
        self._connection.subscriptions.discard(self)
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True), suppress(*_LINK_ERRORS):
            await self._vendor.unsubscribe()


class _Client(Client):
    """The client of `nats-py`, with its private members, which three fixes need. There is no public way.

    Measured with nats-py 2.16, in 10 of 10 runs, and in none with these members: a token is sent in clear text to a
    server without TLS; a message with an unreadable header (3 of 7 kinds) ends all reading of each gateway that gets
    it; with `uvloop`, a connection that breaks with unsent data keeps its subscriptions.
    """

    def check_encryption(self) -> None:
        """Raise `SecureConnWantedError` without TLS: because `nats-py` sends secrets even to a server without TLS."""
        if not self._server_info.get("tls_required"):
            raise nats.errors.SecureConnWantedError

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except (IndexError, ValueError):  # the sender chose the header; the error would end the connection each time
            return None

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        # `uvloop` refuses to send the rest on a lost connection: the error would stop the cleanup halfway.
        self._pending, self._pending_data_size = [], 0
        await super()._close(status, do_cbs)


@dataclass(eq=False)
class _LinkedClient:
    client: _Client = field(default_factory=_Client)
    closed: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None
    """The last one that the client reported apart from a call."""
    subscriptions: set[LinkSubscription] = field(default_factory=set)
    calls: set[anyio.CancelScope] = field(default_factory=set)

    @property
    def denial(self) -> str | None:
        """The missing permission."""
        text = _reason(self.error) if self.error is not None else ""
        return text if "permissions violation" in text.lower() else None

    async def note_error(self, error: Exception) -> None:
        self.error = error
        if self.denial is not None:  # a request without permission never gets an answer
            self._end_calls()

    async def note_closed(self) -> None:
        self.closed.set()

    def end(self) -> None:
        """End calls and subscriptions."""
        self._end_calls()
        for subscription in self.subscriptions:
            subscription.receive(None)

    def _end_calls(self) -> None:
        for scope in self.calls:
            scope.cancel()


class NatsLink:
    """The connection of one gateway. Call `start` first; then `keep_connected` runs as a task, until `close`."""

    def __init__(self, options: JetStreamOptions, folder: Path, token: str | None, times: LinkTimes) -> None:
        self._servers = options.servers
        self._login = NatsLogin(options, folder, token)
        self.times = times
        self._connection: _LinkedClient | None = None
        self._connected = anyio.Event()
        self._problem = ""
        self.max_payload = 0
        """Largest message of the server, headers included; that of the last connection if there is none now."""
        self.is_closed = False

    async def call(self, exchange: Callable[[JetStreamContext], Awaitable[_T]]) -> _T:
        """Run an exchange with JetStream. Raises errors of a backplane; `NotFoundError` passes."""
        connection = self._connection_now()
        connection.error = None
        scope = anyio.move_on_after(self.times.request + 1)
        connection.calls.add(scope)
        try:
            with scope:
                return await exchange(connection.client.jetstream(timeout=self.times.request))
        except NotFoundError:
            raise
        except (*_LINK_ERRORS, ValueError) as error:
            raise _translated(error) from None
        finally:
            connection.calls.discard(scope)
        if connection.denial is not None:
            raise BackplaneRefused(f"NATS: {connection.denial}")
        raise BackplaneUnavailable("the connection to NATS was lost")

    async def publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a message without acknowledgement. Raises errors of a backplane."""
        try:
            await self._connection_now().client.publish(subject, data, headers=headers)
        except _LINK_ERRORS as error:
            raise _translated(error) from None

    async def subscribe(self, subject: str, receive: Callable[[Msg | None], object]) -> LinkSubscription:
        """Call a function with each message of a subject, and with None once the connection is lost.

        The function must not raise. Raises errors of a backplane.
        """
        connection = self._connection_now()
        try:
            vendor = await connection.client.subscribe(subject, future=_EachMessage(receive))
        except _LINK_ERRORS as error:
            raise _translated(error) from None
        subscription = LinkSubscription(receive, connection, vendor)
        if self._connection is not connection:  # lost in the meantime
            receive(None)
        connection.subscriptions.add(subscription)
        return subscription

    async def wait_connected(self) -> bool:
        """Pause, then wait for a connection. Returns False once the link is closed."""
        await anyio.sleep(_RETRY_SECONDS)
        while not self.is_closed and self._connection is None:
            await self._connected.wait()
        return not self.is_closed

    async def keep_connected(self) -> None:
        """Restore lost connections until the link is closed."""
        while not self.is_closed:
            if self._connection is None:
                await self._reconnect()
            else:
                await self._wait_until_lost(self._connection)
                if not self.is_closed:
                    error = self._connection.error
                    log.warning("connection to NATS lost: %s", _reason(error) if error else "it does not answer")
                await self._drop()

    async def start(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Connect and prepare; retry both for a limited time.

        Raises the last error.
        """
        deadline = anyio.current_time() + self.times.start
        while True:
            try:
                if self._connection is None or not self._connection.client.is_connected:
                    await self._drop()
                    await self.connect()
                return await prepare()
            except BackplaneUnavailable:
                if anyio.current_time() >= deadline:
                    raise
            await anyio.sleep(_RETRY_SECONDS)

    async def connect(self) -> None:
        """Connect to one of the servers, in any order. Raises `BackplaneUnavailable` and `BackplaneRefused`."""
        problems = []
        for server in random.sample(self._servers, len(self._servers)):
            connection = _LinkedClient()
            arguments = self._login.arguments(server, connection.client.check_encryption)
            try:
                await connection.client.connect(
                    servers=[server],
                    name="mew-agent",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=self.times.connect,
                    flush_timeout=self.times.request,
                    skip_subject_validation=True,  # all subjects consist of safe tokens
                    error_cb=connection.note_error,
                    closed_cb=connection.note_closed,
                    **arguments,
                )
                if arguments["tls"] is not None:
                    connection.client.check_encryption()
            except _LINK_ERRORS as error:
                cause = connection.error or error
                problems.append(f"{server} ({_reason(cause)})")
                await _abandon(connection.client)
                if _needs_operator(cause):
                    hint = self._login.hint if "authorization" in str(cause).lower() else ""
                    raise BackplaneRefused(f"NATS cannot be used: {problems[-1]}{hint}") from None
                continue
            except BaseException:
                await _abandon(connection.client)
                raise
            self._connection = connection
            self.max_payload = connection.client.max_payload
            self._connected.set()
            self._connected = anyio.Event()
            return
        raise BackplaneUnavailable(f"NATS cannot be reached: tried {', '.join(problems)}")

    async def close(self) -> None:
        """Disconnect for good; subscriptions and waiting calls end."""
        self.is_closed = True
        await self._drop()
        self._connected.set()

    def _connection_now(self) -> _LinkedClient:
        if self._connection is None:
            raise BackplaneUnavailable(self._problem or "the connection to NATS is lost")
        return self._connection

    async def _reconnect(self) -> None:
        try:
            await self.connect()
        except BackplaneError as error:
            if self._problem != str(error):
                log.warning("%s; trying again", error)
            self._problem = str(error)
            await anyio.sleep(_RETRY_SECONDS)
        else:
            self._problem = ""
            log.info("connected to NATS again")

    async def _wait_until_lost(self, connection: _LinkedClient) -> None:
        """Wait until the client gives up or the server does not answer a ping in time."""
        with suppress(*_LINK_ERRORS):
            while not connection.client.is_closed:
                with anyio.move_on_after(self.times.ping):
                    await connection.closed.wait()
                    return
                with anyio.move_on_after(self.times.pong) as scope:
                    await connection.client.rtt()
                if scope.cancelled_caught:
                    return

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()
            await _abandon(connection.client)


async def _abandon(client: Client) -> None:
    """Close a client, even if its server no longer reads."""
    with anyio.move_on_after(_CLOSE_SECONDS, shield=True), suppress(*_LINK_ERRORS):
        await client.close()


def _needs_operator(error: Exception) -> bool:
    """Return whether an error needs an operator, so that other servers and retries cannot help."""
    wrong = (ssl.SSLCertVerificationError, nats.errors.SecureConnWantedError, nats.errors.InvalidUserCredentialsError)
    return isinstance(error, wrong) or "authorization" in str(error).lower()


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, nats.errors.SecureConnWantedError):
        return "it offers no TLS"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason}"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return (str(error) or type(error).__name__).removeprefix("nats: ").strip("'\" ")


def _translated(error: Exception) -> BackplaneError:
    match error:
        case APIError() if error.err_code in _WRONG_REVISION:
            return Conflict(error.description)
        case APIError():
            hint = f"; {_HINTS[error.err_code]}" if error.err_code in _HINTS else ""
            if error.code in (400, 401, 403, 404) and error.err_code != _NO_PEERS:
                return BackplaneRefused(f"NATS refuses this: {error.description} (error {error.err_code}){hint}")
            return BackplaneUnavailable(
                f"NATS cannot do this now: {error.description or 'is JetStream enabled?'}{hint}"
            )
        case nats.errors.MaxPayloadError():
            return BackplaneRefused("a message is larger than the NATS server accepts; raise its max_payload")
        case nats.errors.NoRespondersError() | NoStreamResponseError():
            return BackplaneUnavailable("no NATS server stores the space now")
        case nats.errors.TimeoutError() | TimeoutError():
            return BackplaneUnavailable("no answer from NATS in time")
        case _:
            return BackplaneUnavailable(f"NATS: {_reason(error)}")
