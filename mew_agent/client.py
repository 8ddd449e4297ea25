"""One participant's connection to a gateway: connect, join, receive, send, and come back when it breaks.

The only module that imports `websockets`; its errors become `GatewayError`s here. It does not know what envelopes
mean, except for the few that decide about the connection: welcome, unauthorized, superseded.
"""

import logging
import math
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
from pydantic_core import to_json
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from mew_agent.errors import ConfigError, GatewayError, NotConnected, Superseded, Unauthorized
from protocol.codec import DEFAULT_MAX_BYTES, StreamFrame, decode
from protocol.envelope import Draft, Envelope
from protocol.errors import CLOSE_REMOVED, CLOSE_UNAUTHORIZED, SUPERSEDED, UNAUTHORIZED, DecodeError
from protocol.ids import GATEWAY
from protocol.join import join_frame
from protocol.kinds import SYSTEM_ERROR, SYSTEM_WELCOME

logger = logging.getLogger("mew_agent.client")

JOIN_TIMEOUT_SECONDS = 10.0
HEARTBEAT_SECONDS = 20.0
BACKOFF_FIRST_SECONDS = 0.25
BACKOFF_MAX_SECONDS = 15.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

Receive = Callable[[Envelope | StreamFrame], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Address:
    """Which gateway and space, and as whom. `token` stays out of every representation."""

    gateway: str
    space: str
    participant: str
    token: str

    def __repr__(self) -> str:
        return f"Address({self.gateway!r}, space={self.space!r}, participant={self.participant!r})"


class Client:
    """A joined connection that is kept alive.

    `run` connects, joins and feeds every message to `receive` until `aclose`; a lost connection is joined again
    with growing, jittered delays. It ends by raising when coming back makes no sense: `Unauthorized`,
    `Superseded`, removal from the space, or no first connection within `first_connect_seconds`.
    """

    def __init__(self, address: Address, *, first_connect_seconds: float = 10.0) -> None:
        self.address = address
        self._first_connect_seconds = first_connect_seconds
        self._socket: ClientConnection | None = None
        self._joined = anyio.Event()
        self._closing = False
        self.joins = 0
        """How often a gateway has welcomed us; later welcomes on one connection do not count."""
        self._last_cause = "not joined yet"

    @property
    def is_joined(self) -> bool:
        """Whether the gateway has welcomed the present connection."""
        return self._joined.is_set()

    async def run(self, receive: Receive) -> None:
        """Stay joined until closed. Raises a `GatewayError` when that is not possible."""
        attempt, ever_joined = 0, False
        give_up_at = anyio.current_time() + self._first_connect_seconds
        while True:
            try:
                async with self._connection() as socket:
                    await self._join(socket, receive)
                    attempt, ever_joined = 0, True
                    await self._pump(socket, receive)
            except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed) as error:
                self._last_cause = _cause(error)
                self._refuse_to_return(error)
            finally:
                self._socket = None
                if self._joined.is_set():
                    self._joined = anyio.Event()
            if self._closing:
                return
            if not ever_joined and anyio.current_time() >= give_up_at:
                raise NotConnected(self.address.gateway, self._last_cause)
            attempt += 1
            await anyio.sleep(_delay(attempt))
            if ever_joined:
                logger.info("connecting to %s again (%s)", self.address.gateway, self._last_cause)

    async def send(self, message: Envelope | bytes | str, *, wait_seconds: float = 30.0) -> None:
        """Send an envelope or a raw stream frame, waiting for a reconnection if there is none right now.

        Raises `NotConnected` when none came within `wait_seconds`.
        """
        raw: bytes | str = message.encode().decode() if isinstance(message, Envelope) else message
        with anyio.move_on_after(wait_seconds):
            while not self._closing:
                await self._joined.wait()
                socket = self._socket
                try:
                    if socket is not None:
                        await socket.send(raw)
                        return
                except ConnectionClosed as error:
                    self._last_cause = _cause(error)
                await anyio.lowlevel.checkpoint()
        raise NotConnected(self.address.gateway, self._last_cause)

    async def aclose(self) -> None:
        """Leave: close the socket, after which `run` returns."""
        self._closing = True
        if self._socket is not None:
            with suppress(ConnectionClosed, OSError):
                await self._socket.close()

    def _connection(self) -> connect:
        try:
            host = urlsplit(self.address.gateway).hostname
        except ValueError:
            host = None
        try:
            return connect(
                self.address.gateway,
                additional_headers={"Authorization": f"Bearer {self.address.token}"},
                compression=None,
                proxy=None if host in _LOOPBACK else True,
                max_size=DEFAULT_MAX_BYTES,
                ping_interval=HEARTBEAT_SECONDS,
                ping_timeout=HEARTBEAT_SECONDS,
                close_timeout=2.0,
            )
        except InvalidURI as error:
            raise ConfigError("gateway", str(error), "a URL like ws://127.0.0.1:8080") from None

    async def _join(self, socket: ClientConnection, receive: Receive) -> None:
        """Send the join frame and wait for our welcome; everything that arrives before it is passed on."""
        address = self.address
        frame = join_frame(space=address.space, participant=address.participant, token=address.token)
        await socket.send(to_json(frame).decode())
        with anyio.fail_after(JOIN_TIMEOUT_SECONDS):
            while True:
                message = _read(await socket.recv())
                if message is None:
                    continue
                if isinstance(message, Envelope):
                    self._raise_if_final(message)
                    if message.kind == SYSTEM_WELCOME and message.is_for(address.participant):
                        self._socket = socket
                        self.joins += 1
                        self._joined.set()
                        await receive(message)
                        return
                await receive(message)

    async def _pump(self, socket: ClientConnection, receive: Receive) -> None:
        async for raw in socket:
            message = _read(raw)
            if message is None:
                continue
            if isinstance(message, Envelope):
                self._raise_if_final(message)
            await receive(message)

    def _raise_if_final(self, message: Envelope) -> None:
        """The gateway's own word that there is no point in coming back."""
        if message.kind != SYSTEM_ERROR or message.sender != GATEWAY:
            return
        detail = str(message.body.get("message") or "")
        match message.body.get("error"):
            case str(code) if code == SUPERSEDED:
                raise Superseded(self.address.participant)
            case str(code) if code == UNAUTHORIZED and not self._joined.is_set():
                raise Unauthorized(self.address.participant, detail)
            case _:
                return

    def _refuse_to_return(self, error: Exception) -> None:
        code = error.rcvd.code if isinstance(error, ConnectionClosed) and error.rcvd else None
        if code == CLOSE_UNAUTHORIZED:
            raise Unauthorized(self.address.participant) from None
        if code == CLOSE_REMOVED:
            raise GatewayError(f"'{self.address.participant}' was removed from the space") from None


def _read(raw: bytes | str) -> Envelope | StreamFrame | None:
    """Read what a gateway sent; what cannot be read is logged and left out, whatever gateway it is."""
    try:
        message = decode(raw)
    except DecodeError as error:
        logger.warning("the gateway sent something unreadable: %s", error)
        return None
    if isinstance(message, Draft):
        return Envelope.complete(message, id="", ts="", sender=str(GATEWAY))
    return message


def _delay(attempt: int) -> float:
    """Exponential backoff with jitter, so that many participants do not come back in one instant."""
    ceiling = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * math.pow(2, attempt - 1))
    return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def _cause(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
