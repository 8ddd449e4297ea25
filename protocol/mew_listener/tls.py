"""The TLS handshake of each connection.

Owns the limits until the handshake is complete: the connection counts as unjoined, and its time is limited. Then
`http_connection` takes over, as without TLS.
"""

import asyncio
import logging
import ssl
from typing import cast

from mew_listener.connection_limits import TLS_BYTES
from mew_listener.server_connections import ServerConnections

log = logging.getLogger("mew_listener")

CLOSE_SECONDS = 2.0
"""How long a client may take to answer the end of a TLS connection."""

_HANDSHAKE_RECORD = 0x16
_ADVICE = b'{"error":"invalid_request","message":"this port serves TLS; use https:// or wss://"}'
_NO_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_ADVICE), _ADVICE)
)
"""Answer to a client that speaks plain HTTP."""


class TlsHandshake(asyncio.Protocol):
    """A connection until its TLS handshake is complete."""

    def __init__(
        self, connections: ServerConnections, protocol: asyncio.Protocol, context: ssl.SSLContext, seconds: float
    ) -> None:
        """`protocol` takes the connection over after the handshake, which may take `seconds`."""
        self._connections, self._protocol, self._context = connections, protocol, context
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._arrived = bytearray()
        """Bytes for the TLS layer: the start of the handshake, later the data that came with its end."""
        self._address = ""
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._deadline: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        self._connections.add(self, self._address)
        self._deadline = self._loop.call_later(self._seconds, self.evict)

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        if self._handshake is not None:
            return
        if self._arrived[0] != _HANDSHAKE_RECORD:
            self.transport.write(_NO_TLS)
            self.transport.close()
            return
        # The server's TLS starts only now: a silent connection needs no TLS buffers, and the first bytes show whether
        # the client speaks TLS.
        self.transport.pause_reading()
        self._handshake = self._loop.create_task(self._shake_hands())

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def evict(self) -> bool:
        """Close the connection at once: it is too slow, others need its place, or the server stops."""
        self.transport.abort()
        if self._handshake is not None:
            self._handshake.cancel()
        self._forget()
        return True

    shutdown = evict

    async def _shake_hands(self) -> None:
        transport, hello = self.transport, bytes(self._arrived)
        self._arrived.clear()
        self._connections.unjoined.hold(self, TLS_BYTES)
        starting = self._loop.create_task(
            self._loop.start_tls(transport, self, self._context, server_side=True, ssl_shutdown_timeout=CLOSE_SECONDS)
        )
        try:
            for _ in range(2):  # until the TLS layer has the transport
                await asyncio.sleep(0)
            _feed(transport.get_protocol(), hello)
            secure = await starting
        except (OSError, asyncio.CancelledError) as error:  # an SSLError is an OSError
            log.debug("TLS handshake with %s failed: %s", self._address, error)
            starting.cancel()
            transport.abort()
            return
        finally:
            self._forget()
        if secure is None or secure.is_closing():  # asyncio returns None for a connection that was lost in the meantime
            transport.abort()
            return
        secure.set_protocol(self._protocol)
        self._protocol.connection_made(secure)
        if self._arrived:
            self._protocol.data_received(bytes(self._arrived))

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._connections.remove(self)


def _feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Pass bytes to a protocol as a transport does; the TLS layer is a `BufferedProtocol`."""
    layer = cast("asyncio.BufferedProtocol", protocol)
    while data:
        buffer = memoryview(layer.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        layer.buffer_updated(size)
        data = data[size:]
