"""The gateway's WebSocket endpoint: one connection from its handshake to its close.

Owns the time a client has to join, and how messages reach the connection: through the direct channel of our own
server, or through ASGI under any other. What a message means is decided in `connection`.
"""

import asyncio

import anyio
from mew_listener.unjoined import JOIN_GATE, JoinGate
from mew_protocol.join import JOIN_BY_FRAME, JOIN_HEADER
from starlette.websockets import WebSocket
from websockets.frames import CloseCode

from mew_spaces.gateway.connection import Connection
from mew_spaces.gateway.http import bearer_of
from mew_spaces.gateway.outbound import EXTENSION, AsgiChannel, DirectChannel, OutboundChannel
from mew_spaces.gateway.registry import SpaceRegistry

AUTO_JOIN_SECONDS = 0.25
"""How long a client with a bearer header may take to send a join frame before it joins without one."""


async def serve_websocket(registry: SpaceRegistry, websocket: WebSocket) -> None:
    """Serve one connection to any of the spaces: the ASGI endpoint. Returns early if the channel takes over."""
    connection = Connection(
        registry,
        bearer=None if websocket.headers.get(JOIN_HEADER) == JOIN_BY_FRAME else bearer_of(websocket.headers),
        space=websocket.query_params.get("space"),
        address=websocket.client.host if websocket.client is not None else "",
    )
    await websocket.accept()
    direct = websocket.scope.get("extensions", {}).get(EXTENSION)
    if isinstance(direct, DirectChannel):
        direct.on_slow, direct.on_too_large = connection.slow, connection.too_large
        _attach(connection, direct, websocket, registry)
        direct.attach(connection.receive, connection.disconnected)
        # A task that only waits, with the stack that led to it, would be most of what an idle connection costs.
        return
    channel = AsgiChannel(on_slow=connection.slow)
    try:
        _attach(connection, channel, websocket, registry)
        with channel.scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(channel.run, websocket.send)
                while (message := await websocket.receive())["type"] != "websocket.disconnect":
                    text, data = message.get("text"), message.get("bytes")
                    connection.receive(text.encode() if text is not None else data or b"", is_text=text is not None)
                tasks.cancel_scope.cancel()
    finally:
        connection.disconnected()


def _attach(connection: Connection, channel: OutboundChannel, websocket: WebSocket, registry: SpaceRegistry) -> None:
    """Attach a connection to its channel, and bound the time until it joins. Only our own server has a gate."""
    connection.attach(channel)
    gate: JoinGate | None = websocket.scope.get("state", {}).get(JOIN_GATE)
    if gate is not None:

        def refuse_size() -> None:
            if channel.is_open:
                connection.too_large()
                channel.close(CloseCode.MESSAGE_TOO_BIG, "")

        gate.on_too_large, gate.on_evicted, channel.on_joined = refuse_size, channel.stop_writing, gate.on_joined
    seconds, end = registry.default.config.limits.join_timeout_seconds, connection.join_timed_out
    if connection.has_bearer:
        seconds, end = AUTO_JOIN_SECONDS, connection.join_by_header
    connection.on_decided = asyncio.get_running_loop().call_later(seconds, end).cancel
