"""The gateway's WebSocket endpoint: one connection from its handshake to its close.

Owns the time a client has to join, and how messages reach the connection: through the direct channel of our own
server, or through ASGI under any other. What a message means is decided in `connection`.
"""

import asyncio

import anyio
from mew_protocol.join import JOIN_BY_FRAME, JOIN_HEADER
from starlette.websockets import WebSocket
from websockets.frames import CloseCode

from mew_spaces.gateway.connection import Connection
from mew_spaces.gateway.http import bearer_of
from mew_spaces.gateway.outbound import (
    CLOSE_TIMEOUT_SECONDS,
    EXTENSION,
    AsgiChannel,
    DirectChannel,
    OutboundChannel,
)
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.unjoined import JOIN_GATE, JoinGate

AUTO_JOIN_SECONDS = 0.25
"""How long a client with a bearer header may take to send a join frame before it joins without one."""


class WebSocketEndpoint:
    """Serves the WebSocket connections of all spaces of a gateway."""

    def __init__(self, registry: SpaceRegistry) -> None:
        self._registry = registry
        self._limits = registry.default.config.limits

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one connection: the ASGI endpoint."""
        connection = Connection(
            self._registry,
            bearer=None if websocket.headers.get(JOIN_HEADER) == JOIN_BY_FRAME else bearer_of(websocket.headers),
            space=websocket.query_params.get("space"),
            address=websocket.client.host if websocket.client is not None else "",
        )
        await websocket.accept()
        channel = websocket.scope.get("extensions", {}).get(EXTENSION)
        gate = websocket.scope.get("state", {}).get(JOIN_GATE)
        if isinstance(channel, DirectChannel):
            channel.on_slow, channel.on_too_large = connection.slow, connection.too_large
            self._attach(connection, channel, gate)
            channel.attach(connection.receive, connection.disconnected)
            # The connection stays open. A task that only waits, with the stack that led to it, would be most of what an
            # idle connection costs in memory.
            return
        try:
            await self._serve_by_asgi(websocket, connection, gate)
        finally:
            connection.disconnected()

    async def _serve_by_asgi(self, websocket: WebSocket, connection: Connection, gate: JoinGate | None) -> None:
        channel = AsgiChannel(on_slow=connection.slow)
        self._attach(connection, channel, gate)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run, websocket.send)
            tasks.start_soon(_cancel_after_close, channel, tasks.cancel_scope)
            while not connection.is_disconnected:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    connection.disconnected()
                    continue
                text, data = message.get("text"), message.get("bytes")
                connection.receive(text.encode() if text is not None else data or b"", is_text=text is not None)
            tasks.cancel_scope.cancel()

    def _attach(self, connection: Connection, channel: OutboundChannel, gate: JoinGate | None) -> None:
        """Attach a connection to its channel, and bound the time until it joins. Only our own server has a gate."""
        connection.attach(channel)
        if gate is not None:

            def refuse_size() -> None:
                if channel.is_open:
                    connection.too_large()
                    channel.close(CloseCode.MESSAGE_TOO_BIG, "")

            gate.on_too_large, gate.on_evicted, channel.on_joined = refuse_size, channel.stop_writing, gate.on_joined
        seconds, end = self._limits.join_timeout_seconds, connection.join_timed_out
        if connection.has_bearer:
            seconds, end = AUTO_JOIN_SECONDS, connection.join_by_header
        connection.on_decided = asyncio.get_running_loop().call_later(seconds, end).cancel


async def _cancel_after_close(channel: AsgiChannel, scope: anyio.CancelScope) -> None:
    await channel.closing.wait()
    await anyio.sleep(CLOSE_TIMEOUT_SECONDS)
    scope.cancel()
