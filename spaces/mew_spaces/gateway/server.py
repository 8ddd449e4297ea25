"""The listener of the gateway: its address, and the settings of a space as the limits of the listener."""

import errno
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from mew_listener.proxies import TrustedProxies
from mew_listener.server import ListenerOptions, in_url
from mew_listener.server import bound_socket as bound_listener
from mew_listener.websocket import WebSocketOptions

from mew_spaces.errors import PortInUse, SpacesError
from mew_spaces.gateway.http_bodies import describe_error
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.websocket_endpoint import open_websocket

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
    """Return how the listener serves these spaces. The HTTP API bounds bodies itself: each of its routes differs."""
    limits = registry.default.config.limits
    return ListenerOptions(
        connections=limits.unjoined_connections,
        connections_per_address=limits.unjoined_connections_per_address,
        total_bytes=UNJOINED_TOTAL_BYTES,
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
        describe_error=describe_error,
    )


@contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address while the block runs; port 0 picks a free port.

    Raises `PortInUse`, and `SpacesError` if the address cannot be used.
    """
    try:
        listener = bound_listener(host, port)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from None
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SpacesError(f"cannot listen on {in_url(host)}:{port}: {cause}") from None
    with listener:
        yield listener
