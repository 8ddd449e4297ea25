"""The gateway's side of a new WebSocket connection: the time it has to join, and how its messages arrive.

What a message means is decided in `connection`.
"""

import asyncio
from urllib.parse import parse_qs

from mew_listener.websocket import WebSocketConnection, WebSocketRequest
from mew_protocol.join import JOIN_BY_FRAME, JOIN_HEADER

from mew_spaces.gateway.connection import Connection
from mew_spaces.gateway.http import bearer_of
from mew_spaces.gateway.outbound import DirectChannel
from mew_spaces.gateway.registry import SpaceRegistry

AUTO_JOIN_SECONDS = 0.25
"""How long a client with a bearer header may take to send a join frame before it joins without one."""


def open_websocket(registry: SpaceRegistry, socket: WebSocketConnection, request: WebSocketRequest) -> DirectChannel:
    """Serve a connection to any of the spaces. Returns the channel that writes to it."""
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
