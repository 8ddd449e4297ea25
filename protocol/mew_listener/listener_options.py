"""The options of one server. `http_connection` has the limits of a connection's phases."""

import ssl
from dataclasses import dataclass, field

from mew_listener.connection_limits import UnjoinedLimits
from mew_listener.proxies import TrustedProxies
from mew_listener.request_guard import DescribeError, describe_error
from mew_listener.time_share import Allowances
from mew_listener.websocket_connection import WebSocketOptions

STOP_SECONDS = 5.0
"""How long open requests may take once a server stops."""

BODY_BYTES = 64 * 1024 * 1024
"""Large, because clients of models send the whole conversation with its images each time."""

HEADER_SECONDS = 10.0
REQUEST_SECONDS = 120.0
STALLED_SECONDS = 120.0


@dataclass(frozen=True)
class ListenerOptions:
    """Options of one server. Times are in seconds."""

    unjoined: UnjoinedLimits = field(default_factory=UnjoinedLimits)
    body_bytes: int | None = field(default_factory=lambda: BODY_BYTES)
    """The largest body of a request. None for an application that passes bodies on, such as a relay."""
    copied_bytes: int = 0
    """The largest body that an application without `body_bytes` copies. Until its end, it counts as a stranger's."""
    header_seconds: float = field(default_factory=lambda: HEADER_SECONDS)
    request_seconds: float = field(default_factory=lambda: REQUEST_SECONDS)
    """How long a request may take from its headers to the end of its body, and a stranger's to its response's end."""
    stalled_seconds: float = STALLED_SECONDS
    """How long a client may read nothing of a response that waits for it."""
    stop_seconds: float = STOP_SECONDS
    is_open: bool = False
    """Whether the server answers everybody: a request counts as a stranger's only until its body is complete."""
    websocket: WebSocketOptions | None = None
    tls: ssl.SSLContext | None = None
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    allowances: Allowances = field(default_factory=Allowances)
    """Of the clients that join over WebSocket."""
    describe_error: DescribeError = describe_error
