"""The reasoning of a turn, as peers see it: its envelopes, and the stream of the model's text while the model writes.

Owns the opening, the frames and the closing of one stream. Frames are JSON objects as the reference implementation's
clients read them: `status`, `token`, `thought`, each with the `context` of its reasoning.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
from mew_protocol import kinds
from mew_protocol.codec import encode_frame
from pydantic_core import to_json

from mew_agent.errors import GatewayError, MewAgentError, NotAccepted, NotConfirmed, NotPermitted
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
        """True after a lost connection: the rest of the text then comes with the answer instead of the stream."""
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


INTERRUPTED: Final = "I was restarted while I worked on this; I continue."
OPTIONAL_SECONDS: Final = 5.0
"""How long an acknowledgement or a reasoning envelope waits for a lost gateway."""

ANSWER_SECONDS: Final = 300.0
"""The same for an answer and its conclusion; then the next attempt begins."""


class Reasoning:
    """The envelopes of one turn that show peers how an answer is made: start, thoughts, frames, one conclusion.

    `about` are the ids that they refer to. With `is_shown` False, or without the capability, it sends nothing.
    """

    def __init__(self, messenger: Messenger, about: tuple[str, ...], *, is_shown: bool = True) -> None:
        self._messenger, self._about, self._is_shown = messenger, about, is_shown
        self.id: str | None = None
        """None while peers see no reasoning."""
        self._stream: ReasoningStream | None = None

    async def start(self, text: str, name: str) -> None:
        """Announce the reasoning about a text under this id, and request its stream."""
        if not self._is_shown or not self._messenger.may_send(kinds.REASONING_START):
            return
        try:
            await self.send(kinds.REASONING_START, {"message": text, "input": text}, OPTIONAL_SECONDS, id=name)
        except NotConfirmed:
            pass  # members may have it, so it must get its conclusion
        except GatewayError:
            return
        self.id, self._stream = name, ReasoningStream(self._messenger, name)
        self._stream.start()

    async def write(self, kind: str, **values: Any) -> None:
        """Send a frame of the stream, if there is one."""
        if self._stream is not None:
            await self._stream.write(kind, **values)

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

    async def conclude(self, name: str, answer: str | None, reason: str | None) -> None:
        """Conclude under this id; `answer` None: it was cancelled. Raises the `GatewayError` of sending."""
        if self.id is None:
            return
        await self._send_conclusion(name, _conclusion_of(answer, reason))
        if self._stream is not None:
            await self._stream.write("status", event="conclusion", cancelled=answer is None)
            closing = "cancelled" if answer is None else "complete"
            self._messenger.session.start_soon(self._stream.aclose, closing)

    async def conclude_for_killed_process(self, opened: str, name: str, answer: str | None, *, continues: bool) -> None:
        """Conclude the reasoning that a killed process left open. The gateway drops a conclusion that it knows."""
        if self._is_shown:
            self.id = opened
            interrupted = {"message": INTERRUPTED, "interrupted": True}
            await self._send_conclusion(name, interrupted if continues else _conclusion_of(answer, None))
            self.id = None

    async def close(self, reason: str) -> None:
        """Close the stream before the turn ends."""
        if self._stream is not None:
            await self._stream.aclose(reason)

    async def send_optional(self, kind: str, payload: Mapping[str, Any], **headers: Any) -> None:
        """Send an envelope that the answer does not need. Without capability or gateway it is left out."""
        with suppress(NotPermitted, GatewayError):
            await self.send(kind, payload, OPTIONAL_SECONDS, **headers)

    async def send(self, kind: str, payload: Mapping[str, Any], wait_seconds: float, **headers: Any) -> None:
        """Send an envelope about the chat. Raises the errors of `Participant.send`."""
        await self._messenger.send(kind, payload, correlation_id=self._about, wait_seconds=wait_seconds, **headers)

    async def _send_conclusion(self, name: str, payload: dict[str, Any]) -> None:
        with suppress(NotPermitted, NotAccepted):
            await self.send(kinds.REASONING_CONCLUSION, payload, ANSWER_SECONDS, context=self.id, id=name)


def _conclusion_of(answer: str | None, reason: str | None) -> dict[str, Any]:
    if answer is None:
        return {"cancelled": True, "reason": reason or "cancelled", "message": "cancelled"}
    return {"message": answer[:200]}
