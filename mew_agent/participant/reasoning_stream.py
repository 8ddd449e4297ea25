"""The reasoning of a turn, as peers see it: its envelopes, and the stream of the model's text.

Owns the opening, the frames and the closing of the stream. Frames are JSON objects in the form of the reference
implementation: `status`, `token`, `thought`, each with the `context` of its reasoning.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from mew_protocol import kinds
from mew_protocol.codec import encode_frame
from mew_protocol.ids import STREAM_GATEWAY
from pydantic_core import to_json

from mew_agent.errors import GatewayError, MewAgentError, NotAccepted, NotConfirmed, NotPermitted
from mew_agent.participant.messenger import Messenger, PendingRequest

OPEN_TIMEOUT_SECONDS = 5.0
FRAME_TIMEOUT_SECONDS = 2.0
"""How long a frame may delay the model call; after that, the stream is given up."""

MAX_WAITING_FRAMES = 2_000


INTERRUPTED: Final = "I was restarted while I worked on this; I continue."
OPTIONAL_SECONDS: Final = 5.0
"""How long an acknowledgement or a reasoning envelope waits for a lost gateway."""

ANSWER_SECONDS: Final = 300.0
"""The same for an answer and its conclusion; then the next attempt begins."""


@dataclass(eq=False)
class Reasoning:
    """The envelopes of one turn that show its reasoning to peers: start, thoughts, frames, one conclusion.

    `_about` are the ids they refer to. With `is_shown` False, or without the capability, it sends nothing. Frames wait
    until the gateway opens the stream.
    """

    _messenger: Messenger
    _about: tuple[str, ...]
    is_shown: bool = True
    id: str | None = None
    """None while peers see no reasoning."""
    _stream_id: str | None = None
    _opening_id: str | None = None
    _waiting: list[str] = field(default_factory=list)
    _has_stream: bool = False
    """Whether the stream was requested, and neither refused nor closed."""
    _connection: int = -1
    """The number of the connection that carries the frames."""
    _opened: anyio.Event = field(default_factory=anyio.Event)

    async def start(self, text: str, name: str) -> None:
        """Announce the reasoning about a text under this id, and request its stream without waiting for it."""
        if not self.is_shown:
            return
        try:
            await self._messenger.send(
                kinds.REASONING_START,
                {"message": text, "input": text},
                correlation_id=self._about,
                wait_seconds=OPTIONAL_SECONDS,
                id=name,
            )
        except NotConfirmed:
            pass  # members may have it, so it needs its conclusion
        except (GatewayError, NotPermitted):
            return
        self.id, self._connection, self._has_stream = name, self._messenger.session.client.joins, True
        self._messenger.session.start_soon(self._open, name)

    # -- the stream --------------------------------------------------------------------------------------

    async def _open(self, name: str) -> None:
        try:
            wanted = {"direction": "upload", "description": f"reasoning:{name}"}
            asked = self._messenger.draft(kinds.STREAM_REQUEST, wanted, to=(STREAM_GATEWAY,))
            request = PendingRequest(asked, STREAM_GATEWAY, kinds.STREAM_OPEN)
            opening = await self._messenger.answer_to(request, OPEN_TIMEOUT_SECONDS)
            stream_id = opening.body.get("stream_id")
            if isinstance(stream_id, str):
                for text in self._waiting:  # the list may grow in the loop
                    await self._send_frame(stream_id, text)
                self._stream_id, self._opening_id = stream_id, opening.id
                self._waiting.clear()
            else:
                self._has_stream = False
        except MewAgentError:
            self._has_stream = False
        finally:
            self._opened.set()

    async def write(self, kind: str, **values: Any) -> None:
        """Send one frame, or keep it until the stream is open. Never raises, because frames are optional."""
        # After a lost connection, the rest of the text comes with the answer instead of the stream.
        if not self._has_stream or self._messenger.session.client.carrier != self._connection:
            return
        text = to_json({"context": self.id, "type": kind, **values}).decode()
        if self._stream_id is not None:
            await self._send_frame(self._stream_id, text)
        elif len(self._waiting) < MAX_WAITING_FRAMES:
            self._waiting.append(text)

    async def _send_frame(self, stream_id: str, text: str) -> None:
        frame, client = encode_frame(stream_id, text), self._messenger.session.client
        try:
            await client.send_unconfirmed(frame, wait_seconds=FRAME_TIMEOUT_SECONDS, only_on=self._connection)
        except GatewayError:
            self._connection = -1  # `close` still closes the stream

    async def close(self, reason: str) -> None:
        """Close the stream. If it was requested, wait until it is open."""
        if not self._has_stream:
            return
        with anyio.move_on_after(OPEN_TIMEOUT_SECONDS):
            await self._opened.wait()
        stream_id, self._stream_id, self._has_stream = self._stream_id, None, False
        if stream_id is not None:
            with suppress(NotPermitted, GatewayError):
                await self._messenger.send(
                    kinds.STREAM_CLOSE,
                    {"stream_id": stream_id, "reason": reason},
                    correlation_id=tuple(name for name in (self._opening_id, stream_id) if name),
                )

    # -- envelopes ---------------------------------------------------------------------------------------

    async def think(self, thought: Mapping[str, Any]) -> None:
        """Send a thought."""
        if self.id is not None:
            await self.send_optional(kinds.REASONING_THOUGHT, thought, context=self.id)

    async def call(self, call_id: str, tool: str, arguments: object, message: str = "") -> dict[str, Any]:
        """Send the thought that a tool is called, and return it. `message` is the text written before the call."""
        message = message or f"I call {tool}."
        call = {"tool": tool, "arguments": arguments, "toolCallId": call_id}
        thought = {"message": message, "reasoning": message, "action": "tool", "actionInput": call}
        await self.think(thought)
        return thought

    async def conclude(
        self, name: str, answer: str | None, reason: str | None, *, is_interrupted: bool = False
    ) -> None:
        """Conclude under this id; `answer` None means cancelled. Raises the `GatewayError` of sending."""
        if self.id is None:
            return
        payload: dict[str, Any] = {"message": INTERRUPTED, "interrupted": True}
        if not is_interrupted and answer is None:
            payload = {"cancelled": True, "reason": reason or "cancelled", "message": "cancelled"}
        elif not is_interrupted:
            payload = {"message": str(answer)[:200]}
        about: dict[str, Any] = {"correlation_id": self._about, "context": self.id, "id": name}
        with suppress(NotPermitted, NotAccepted):
            await self._messenger.send(kinds.REASONING_CONCLUSION, payload, wait_seconds=ANSWER_SECONDS, **about)
        if self._has_stream:
            await self.write("status", event="conclusion", cancelled=answer is None)
            self._messenger.session.start_soon(self.close, "cancelled" if answer is None else "complete")

    async def conclude_for_killed_process(self, opened: str, name: str, answer: str | None, *, continues: bool) -> None:
        """Conclude the open reasoning of a killed process. The gateway drops a repeated conclusion."""
        if self.is_shown:
            self.id = opened
            await self.conclude(name, answer, None, is_interrupted=continues)
            self.id = None

    async def send_optional(self, kind: str, payload: Mapping[str, Any], **headers: Any) -> None:
        """Send an optional envelope. Skip it without the capability or a gateway."""
        headers |= {"correlation_id": self._about, "wait_seconds": OPTIONAL_SECONDS}
        with suppress(NotPermitted, GatewayError):
            await self._messenger.send(kind, payload, **headers)
