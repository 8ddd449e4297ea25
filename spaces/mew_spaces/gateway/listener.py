"""The gateway's listener: its address, its limits (from space settings), and new WebSocket connections.

Owns the time limit for joining. `connection` handles messages.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import parse_qs

from mew_listener.connection_limits import UnjoinedLimits
from mew_listener.http_connection import bearer_of
from mew_listener.listen_address import in_url
from mew_listener.listener_options import ListenerOptions
from mew_listener.proxies import TrustedProxies
from mew_listener.serving import listening_socket
from mew_listener.websocket_connection import WebSocketConnection, WebSocketOptions, WebSocketRequest
from mew_protocol.join import JOIN_BY_FRAME, JOIN_HEADER

from mew_spaces.errors import PortInUse, SpacesError
from mew_spaces.gateway.connection import Connection
from mew_spaces.gateway.http_bodies import describe_error
from mew_spaces.gateway.outbound import DirectChannel
from mew_spaces.gateway.registry import SpaceRegistry

UNJOINED_TOTAL_BYTES = 48 * 1024 * 1024
"""What all connections that have not joined may cost together, as the gateway counts it; the process takes less than
64 MiB for them."""

REQUEST_SECONDS = 60.0
"""How long a request may take from its headers to the end of its response."""

STOP_SECONDS = 3
"""How long open requests may take once the gateway stops."""


def listener_options(
    registry: SpaceRegistry, *, proxies: TrustedProxies, tls: ssl.SSLContext | None
) -> ListenerOptions:
    """Return the listener options for these spaces. The HTTP API limits bodies per route."""
    limits = registry.default.config.limits
    return ListenerOptions(
        unjoined=UnjoinedLimits(
            limits.unjoined_connections, limits.unjoined_connections_per_address, UNJOINED_TOTAL_BYTES
        ),
        body_bytes=None,
        header_seconds=limits.header_timeout_seconds,
        request_seconds=REQUEST_SECONDS,
        stop_seconds=STOP_SECONDS,
        websocket=WebSocketOptions(
            open=partial(open_websocket, registry),
            max_bytes=registry.message_bytes,
            unjoined_bytes=limits.unjoined_message_bytes,
            ping_seconds=limits.ping_interval_seconds,
            ping_timeout_seconds=limits.ping_timeout_seconds,
        ),
        tls=tls,
        proxies=proxies,
        allowances=registry.allowances,
        describe_error=describe_error,
    )


@contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address while the block runs; port 0 picks a free port.

    Raises `PortInUse`, and `SpacesError` if the address cannot be used.
    """
    try:
        listener = listening_socket(host, port)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from None
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SpacesError(f"cannot listen on {in_url(host)}:{port}: {cause}") from None
    with listener:
        yield listener


AUTO_JOIN_SECONDS = 0.25
"""How long a client with a bearer header may take to send a join frame before it joins without one."""


def open_websocket(registry: SpaceRegistry, socket: WebSocketConnection, request: WebSocketRequest) -> DirectChannel:
    """Serve a connection to one of the spaces. Returns the channel that writes to it."""
    connection = Connection(
        registry,
        bearer=None if request.headers.get(JOIN_HEADER) == JOIN_BY_FRAME else bearer_of(request.headers),
        space=parse_qs(request.query).get("space", [None])[-1],
        address=request.client,
    )
    channel = DirectChannel(socket)
    channel.on_message, channel.on_disconnect = connection.receive, connection.disconnected
    channel.on_slow, channel.on_too_large = connection.slow, connection.too_large
    channel.on_joined = socket.admit
    connection.attach(channel)
    seconds, end = registry.default.config.limits.join_timeout_seconds, connection.join_timed_out
    if connection.has_bearer:
        seconds, end = AUTO_JOIN_SECONDS, connection.join_by_header
    connection.on_decided = asyncio.get_running_loop().call_later(seconds, end).cancel
    return channel
