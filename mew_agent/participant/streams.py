"""The reasoning stream: passes what an agent's model writes to its peers while the model writes.

Owns the opening, the frames and the closing of one stream. Frames are JSON objects as the reference implementation's
clients read them: `status`, `token`, `thought`, each with the `context` of its reasoning.
"""

from contextlib import suppress
from typing import Any

import anyio
from mew_protocol import kinds
from mew_protocol.codec import encode_frame
from pydantic_core import to_json

from mew_agent.errors import GatewayError, MewAgentError, NotPermitted
from mew_agent.participant.messenger import Messenger

OPEN_TIMEOUT_SECONDS = 5.0
FRAME_TIMEOUT_SECONDS = 2.0
"""How long a frame may delay the model call; after that, the stream is given up."""

MAX_WAITING_FRAMES = 2_000


class ReasoningStream:
    """The stream of one reasoning. Frames that are written before the gateway opens it wait."""

    def __init__(self, messenger: Messenger, reasoning_id: str) -> None:
        self._messenger = messenger
        self._reasoning_id = reasoning_id
        self._stream_id: str | None = None
        self._opening_id: str | None = None
        self._waiting: list[str] = []
        self._closed = False
        self._client = messenger.session.client
        self._connection = self._client.joins
        self._opened = anyio.Event()

    def start(self) -> None:
        """Request the stream without waiting for it."""
        if self._messenger.may_send(kinds.STREAM_REQUEST, {"direction": "upload"}, to=("gateway",)):
            self._messenger.session.start_soon(self._open)
        else:
            self._closed = True

    async def write(self, kind: str, **values: Any) -> None:
        """Send one frame, or keep it until the stream is open. Never raises: no answer depends on a frame."""
        if self._closed or self._may_have_lost_frames:
            return
        text = to_json({"context": self._reasoning_id, "type": kind, **values}).decode()
        if self._stream_id is None:
            if len(self._waiting) < MAX_WAITING_FRAMES:
                self._waiting.append(text)
            return
        await self._send_frame(self._stream_id, text)

    async def aclose(self, reason: str) -> None:
        """Close the stream; waits until it is open if it was requested."""
        if self._closed:
            return
        with anyio.move_on_after(OPEN_TIMEOUT_SECONDS):
            await self._opened.wait()
        stream_id, self._stream_id, self._closed = self._stream_id, None, True
        if stream_id is not None:
            with suppress(NotPermitted, GatewayError):
                await self._messenger.send(
                    kinds.STREAM_CLOSE,
                    {"stream_id": stream_id, "reason": reason},
                    correlation_id=tuple(name for name in (self._opening_id, stream_id) if name),
                )

    @property
    def _may_have_lost_frames(self) -> bool:
        """Whether the connection broke since the start: readers get the rest with the answer, not text with a hole."""
        return not self._client.is_joined or self._client.joins != self._connection

    async def _open(self) -> None:
        try:
            opening = await self._messenger.ask(
                kinds.STREAM_REQUEST,
                {"direction": "upload", "description": f"reasoning:{self._reasoning_id}"},
                to="gateway",
                answer=kinds.STREAM_OPEN,
                timeout_seconds=OPEN_TIMEOUT_SECONDS,
            )
            stream_id = opening.body.get("stream_id")
            if isinstance(stream_id, str):
                for text in self._waiting:  # the list may grow meanwhile
                    await self._send_frame(stream_id, text)
                self._stream_id, self._opening_id = stream_id, opening.id
                self._waiting.clear()
            else:
                self._closed = True
        except MewAgentError:
            self._closed = True
        finally:
            self._opened.set()

    async def _send_frame(self, stream_id: str, text: str) -> None:
        frame, connection = encode_frame(stream_id, text), self._connection
        try:
            await self._client.send_unconfirmed(frame, wait_seconds=FRAME_TIMEOUT_SECONDS, only_on=connection)
        except GatewayError:
            self._connection = -1  # `aclose` still closes the stream
