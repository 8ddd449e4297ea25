"""The gateway's WebSocket side: one socket from its handshake to its end.

Owns how long a socket may take to join and which way its messages go: from our own server straight through its channel,
under any other by ASGI. What a message means is decided in `connection` and below.
"""

from typing import Any, cast

import anyio
from starlette.websockets import WebSocket

from mew_spaces.gateway.connection import Connection
from mew_spaces.gateway.direct_websocket import CLOSE_GRACE_SECONDS, EXTENSION, DirectChannel
from mew_spaces.gateway.http import bearer_of
from mew_spaces.gateway.outbound import AsgiChannel
from mew_spaces.gateway.registry import SpaceRegistry

AUTO_JOIN_SECONDS = 0.25
"""How long a socket that came with a bearer header may take to send a join frame before it is joined without."""


class WebSocketEndpoint:
    """Serves the sockets of all spaces of a gateway."""

    def __init__(self, registry: SpaceRegistry) -> None:
        self._registry = registry
        self._limits = registry.default.config.limits

    async def serve(self, websocket: WebSocket) -> None:
        """One socket from its handshake to its end."""
        connection = Connection(
            self._registry,
            bearer=bearer_of(websocket.headers),
            space=websocket.query_params.get("space"),
        )
        await websocket.accept()
        channel = websocket.scope.get("extensions", {}).get(EXTENSION)
        goes_on = False
        try:
            if isinstance(channel, DirectChannel):
                goes_on = await self._serve_directly(websocket, connection, channel)
            else:
                await self._serve_by_asgi(websocket, connection)
        finally:
            if not goes_on:
                connection.gone()

    async def _serve_directly(self, websocket: WebSocket, connection: Connection, channel: DirectChannel) -> bool:
        """Serve a socket until it has joined; then its channel does. Returns whether it goes on."""
        channel.tell(on_slow=connection.slow, on_too_large=connection.too_large)
        connection.attach(channel)
        await self._wait_for_join(websocket, connection)
        if connection.is_joined and not connection.is_gone:
            # A task that waits for the end, with all that led to it, would take most of what an idle socket costs.
            channel.attach(connection.receive, connection.gone)
            return True
        while not connection.is_gone:
            if _is_over(await websocket.receive()):
                connection.gone()
        return False

    async def _serve_by_asgi(self, websocket: WebSocket, connection: Connection) -> None:
        channel = AsgiChannel(on_slow=connection.slow)
        connection.attach(channel)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run, websocket.send)
            tasks.start_soon(_cut_off_after_close, channel, tasks.cancel_scope)
            await self._wait_for_join(websocket, connection)
            await self._read(websocket, connection)
            tasks.cancel_scope.cancel()

    async def _wait_for_join(self, websocket: WebSocket, connection: Connection) -> None:
        """Read until it is joined, refused or gone; come to a decision in bounded time."""
        if connection.has_bearer:
            with anyio.move_on_after(AUTO_JOIN_SECONDS):
                await self._read(websocket, connection, until_decided=True)
            connection.join_by_header()
            return
        with anyio.move_on_after(self._limits.join_timeout_seconds):
            await self._read(websocket, connection, until_decided=True)
        connection.give_up_waiting()

    async def _read(self, websocket: WebSocket, connection: Connection, *, until_decided: bool = False) -> None:
        while not connection.is_gone and not (until_decided and (connection.is_joined or connection.is_ended)):
            message = await websocket.receive()
            if _is_over(message):
                connection.gone()
                continue
            text, data = message.get("text"), message.get("bytes")
            connection.receive(text.encode() if text is not None else data or b"", is_text=text is not None)


async def _cut_off_after_close(channel: AsgiChannel, scope: anyio.CancelScope) -> None:
    await channel.closing.wait()
    await anyio.sleep(CLOSE_GRACE_SECONDS)
    scope.cancel()


def _is_over(message: Any) -> bool:
    return cast("str", message["type"]) == "websocket.disconnect"
