"""Chooses the WebSocket protocol that uvicorn runs: ours if it works with the installed uvicorn, else uvicorn's own.

`DirectWebSocketProtocol` builds on private parts of uvicorn, which may change in any release. So each start runs it
against an in-memory transport through a whole connection. If anything is not as expected, connections are served
through the public ASGI interface, which works the same and costs more for each delivery.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState
from websockets.frames import Close, Frame, Opcode

from mew_spaces.gateway.outbound import EXTENSION, DirectChannel, frame_message

log = logging.getLogger("mew_spaces")

CHECK_SECONDS = 5.0
"""How long the check may take; it takes about a millisecond."""

_OVERRIDDEN = (
    "connection_lost",
    "data_received",
    "eof_received",
    "handle_close",
    "handle_connect",
    "handle_parser_exception",
    "keepalive_timeout",
    "pause_writing",
    "resume_writing",
    "run_asgi",
    "send_receive_event_to_app",
    "shutdown",
)
"""uvicorn's methods that ours replaces. One that uvicorn no longer has would never be called."""

_HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: self-check\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)

_Send = Callable[[dict[str, Any]], Awaitable[None]]
_Receive = Callable[[], Awaitable[dict[str, Any]]]


class _Mismatch(Exception):
    """The installed uvicorn differs from what the direct protocol builds on."""


async def choose_protocol(*, direct: bool = True) -> type[asyncio.Protocol] | None:
    """Return the direct protocol if it is wanted and works with the installed uvicorn, else None. Logs one line."""
    if not direct:
        return None
    try:
        from mew_spaces.gateway.direct_websocket import DirectWebSocketProtocol

        async with asyncio.timeout(CHECK_SECONDS):
            await check_protocol(DirectWebSocketProtocol)
    except Exception as error:  # whatever the difference is, the ASGI way still works
        cause = f"{type(error).__name__}: {error}"
        log.warning("uvicorn %s: using ASGI send, direct writes unavailable (%s)", uvicorn.__version__, cause)
        return None
    log.info("uvicorn %s: writing directly to transports", uvicorn.__version__)
    return DirectWebSocketProtocol


async def check_protocol(protocol: type[Any]) -> None:
    """Run two connections in memory, one closed by the client and one by us. Raises if any step goes wrong."""
    base = protocol.__mro__[1]
    for name in _OVERRIDDEN:
        _expect(hasattr(base, name), f"no {name}")
        replaced, ours = getattr(base, name), getattr(protocol, name)
        same = list(inspect.signature(replaced).parameters) == list(inspect.signature(ours).parameters)
        _expect(same, f"{name} takes other parameters")
    await _check_close_by_client(_Connection(protocol))
    await _check_slow_client(_Connection(protocol))


async def _check_close_by_client(connection: "_Connection") -> None:
    await connection.open()
    connection.feed(Frame(Opcode.TEXT, b"whole"), Frame(Opcode.TEXT, b"in ", fin=False))
    connection.feed(Frame(Opcode.PING, b"?"), Frame(Opcode.CONT, b"parts"))
    _expect(connection.received == [b"whole", b"in parts"], "messages are delivered differently")
    _expect(
        connection.take_written() == Frame(Opcode.PONG, b"?").serialize(mask=False), "pings are answered differently"
    )
    connection.feed(Frame(Opcode.CLOSE, Close(1000, "").serialize()))
    _expect(not connection.channel.is_open, "a close frame goes unnoticed")
    _expect(connection.take_written()[:1] == b"\x88", "a close frame is not answered")
    await connection.lose()


async def _check_slow_client(connection: "_Connection") -> None:
    await connection.open()
    connection.channel.write(frame_message("hello"))
    connection.protocol.pause_writing()
    _expect(connection.slow.is_set() and not connection.channel.is_open, "a full write buffer goes unnoticed")
    connection.channel.close_with_message(frame_message("bye"), 4408, "slow")
    close = Frame(Opcode.CLOSE, Close(4408, "slow").serialize()).serialize(mask=False)
    expected = frame_message("hello") + frame_message("bye") + close
    _expect(connection.take_written() == expected, "frames are written differently")
    await connection.lose()


class _Connection:
    """A client's side of a connection in memory, with an application that attaches to the channel."""

    def __init__(self, protocol: type[Any]) -> None:
        config = uvicorn.Config(
            self._run,
            interface="asgi3",
            ws="none",  # "auto" would import protocols that nothing here uses
            log_config=None,
            proxy_headers=False,
            ws_ping_interval=None,
            ws_per_message_deflate=False,
        )
        config.load()
        self._state = ServerState()
        self._transport = _MemoryTransport()
        self._disconnected = asyncio.Event()
        self._channel: DirectChannel | None = None
        self.received: list[bytes] = []
        self.slow = asyncio.Event()
        self.protocol = protocol(config=config, server_state=self._state, app_state={})
        self.protocol.logger = logging.Logger("self-check", logging.CRITICAL)  # the log shows real connections only

    @property
    def channel(self) -> DirectChannel:
        assert self._channel is not None
        return self._channel

    async def open(self) -> None:
        self.protocol.connection_made(self._transport)
        self.protocol.data_received(_HANDSHAKE)
        await asyncio.gather(*self._state.tasks)
        _expect(self._channel is not None, "the handshake fails")
        _expect(self.take_written().startswith(b"HTTP/1.1 101"), "the handshake is answered differently")
        _expect(not self._transport.is_closing(), "the connection closes with the application")

    def feed(self, *frames: Frame) -> None:
        self.protocol.data_received(b"".join(frame.serialize(mask=True) for frame in frames))

    def take_written(self) -> bytes:
        written = bytes(self._transport.written)
        self._transport.written.clear()
        return written

    async def lose(self) -> None:
        self.protocol.connection_lost(None)
        await self._disconnected.wait()
        timer = self.protocol.close_timer
        _expect(timer is None or timer.cancelled(), "a timer outlives its connection")

    async def _run(self, scope: dict[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            self._channel = scope["extensions"][EXTENSION]
            self.channel.on_slow = self.slow.set
            self.channel.attach(lambda data, _is_text: self.received.append(data), self._disconnected.set)


class _MemoryTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Do nothing: nothing reads from this transport."""

    resume_reading = pause_reading


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise _Mismatch(what)
