"""A plain WebSocket client for tests of the gateway, without the protocol's rules."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mew_spaces.gateway.gateway import RunningGateway
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.waiting import PATIENCE_SECONDS

Message = dict[str, Any]


class Client:
    """One socket."""

    def __init__(self, socket: ClientConnection, name: str) -> None:
        self.socket = socket
        self.name = name

    async def send(self, message: Message | str | bytes) -> None:
        """Send an object as JSON, anything else as it is."""
        await self.socket.send(json.dumps(message) if isinstance(message, dict) else message)

    async def send_envelope(self, kind: str, payload: Message | None = None, **headers: Any) -> None:
        """Send an envelope."""
        await self.send({"kind": kind, **({"payload": payload} if payload is not None else {}), **headers})

    async def chat(self, text: str, **headers: Any) -> None:
        """Send a chat."""
        await self.send_envelope("chat", {"text": text}, **headers)

    async def raw(self) -> str | bytes:
        """The next message as it came."""
        with anyio.fail_after(PATIENCE_SECONDS):
            return await self.socket.recv()

    async def next(self) -> Message:
        """The next message, which is JSON."""
        value: Message = json.loads(await self.raw())
        return value

    async def until(self, kind: str) -> Message:
        """The next envelope of a kind; others are passed over."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                raw = await self.socket.recv()
                if raw[:1] not in ("#", b"#"):
                    value: Message = json.loads(raw)
                    if value.get("kind") == kind:
                        return value

    async def error(self) -> Message:
        """The payload of the next error."""
        payload: Message = (await self.until("system/error"))["payload"]
        return payload

    async def join(self, token: str | None, *, participant: str | None = None, space: str | None = None) -> None:
        """Send a join frame."""
        await self.send({"type": "join", "space": space, "token": token, "participantId": participant or self.name})

    async def seen_so_far(self) -> list[Message]:
        """Everything received up to now: a heartbeat has no answer, so an error marks the place."""
        await self.send("mark")
        seen: list[Message] = []
        while True:
            message = await self.next()
            if message["kind"] == "system/error" and message["payload"]["error"] == "invalid_json":
                return seen
            seen.append(message)

    async def closing(self) -> tuple[int, str]:
        """Wait for the end and say how it came."""
        try:
            while True:
                await self.raw()
        except ConnectionClosed as closed:
            received = closed.rcvd
            return (received.code, received.reason) if received is not None else (1006, "")


@asynccontextmanager
async def opened(gateway: RunningGateway, name: str = "", **options: Any) -> AsyncIterator[Client]:
    """A socket that has sent nothing yet."""
    async with connect(gateway.ws_url, ping_interval=None, max_size=None, max_queue=None, **options) as socket:
        yield Client(socket, name)


@asynccontextmanager
async def joined(gateway: RunningGateway, name: str, **options: Any) -> AsyncIterator[Client]:
    """A socket that is in the space and has read its welcome."""
    async with opened(gateway, name, **options) as client:
        await client.join(gateway.token_of(name))
        assert (await client.next())["kind"] == "system/welcome"
        yield client
