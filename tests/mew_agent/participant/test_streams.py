"""The reasoning stream: frames before and after its opening, and everything that can fail."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.participant.participant import Participant
from mew_agent.participant.reasoning_stream import MAX_WAITING_FRAMES, Reasoning
from tests.support.waiting import PATIENCE_SECONDS

Joined = Callable[..., Participant]


class Viewer(Participant):
    """Keeps every frame."""

    def __init__(self, gateway: RunningGateway) -> None:
        super().__init__(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada"))
        self.frames: list[dict[str, Any]] = []
        self.closed: list[dict[str, Any]] = []
        self._changed = anyio.Event()
        self.on("stream/close")(self._note_close)

    async def receive_frame(self, frame: StreamFrame) -> None:
        self.frames.append(json.loads(frame.data))
        self._wake()

    async def _note_close(self, envelope: Envelope) -> None:
        self.closed.append({**envelope.body, "about": envelope.correlation_id})
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            while not condition():  # which may be on something that no message announces
                with anyio.move_on_after(0.05):
                    await self._changed.wait()


@asynccontextmanager
async def watched(
    gateway: RunningGateway, joined: Joined, who: str = "coder"
) -> AsyncIterator[tuple[Viewer, Participant]]:
    async with Viewer(gateway) as viewer, joined(who) as writer:
        yield viewer, writer


async def test_frames_written_before_the_opening_come_first_and_in_order(
    gateway: RunningGateway, joined: Joined
) -> None:
    async with watched(gateway, joined) as (viewer, writer):
        stream = Reasoning(writer.messenger, ())
        await stream.start("A question.", "r-1")
        for number in range(5):
            await stream.write("token", value=str(number))
        await viewer.until(lambda: len(viewer.frames) == 5)
        for number in range(5, 8):
            await stream.write("token", value=str(number))
        await stream.close("complete")
        await viewer.until(lambda: bool(viewer.closed))
        assert [frame["value"] for frame in viewer.frames] == [str(number) for number in range(8)]
        assert {frame["context"] for frame in viewer.frames} == {"r-1"}
        assert viewer.closed[0]["reason"] == "complete"
        assert len(viewer.closed[0]["about"]) == 2
        await stream.write("token", value="too late")
        await stream.close("complete")
        await writer.chat("done")
        assert len(viewer.frames) == 8


async def test_stream_closed_while_opening_is_closed_once_open(gateway: RunningGateway, joined: Joined) -> None:
    async with watched(gateway, joined) as (viewer, writer):
        stream = Reasoning(writer.messenger, ())
        await stream.start("A question.", "r-1")
        await stream.write("token", value="x")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.close, "cancelled")
            tasks.start_soon(stream.close, "complete")
        await viewer.until(lambda: bool(viewer.closed))
        assert len(viewer.frames) == 1
        assert not gateway.service.space.state.streams


async def test_without_the_capability_there_is_no_stream_and_no_error(gateway: RunningGateway, joined: Joined) -> None:
    async with watched(gateway, joined, "mute") as (viewer, writer):
        stream = Reasoning(writer.messenger, ())
        await stream.start("A question.", "r-1")
        await stream.write("token", value="x")
        with anyio.fail_after(PATIENCE_SECONDS):
            await stream.close("complete")
        assert not viewer.frames


async def test_frames_waiting_for_the_opening_are_limited(joined: Joined) -> None:
    async with joined("coder") as writer:
        stream = Reasoning(writer.messenger, ())
        await stream.start("A question.", "r-1")
        for number in range(MAX_WAITING_FRAMES + 5):
            await stream.write("token", value=number)
        assert len(stream._waiting) == MAX_WAITING_FRAMES


async def test_frames_without_a_connection_are_dropped_at_once(joined: Joined) -> None:
    async with joined("coder") as first:
        stream = Reasoning(first.messenger, ())
        await stream.start("A question.", "r-1")
        async with joined("coder"):
            with anyio.fail_after(PATIENCE_SECONDS):
                await first.until_ended()
            with anyio.fail_after(PATIENCE_SECONDS):
                await stream.write("token", value="x")
                await stream.close("complete")


@pytest.mark.parametrize("thinking", ["", "First I look around."])
async def test_peers_receive_the_models_text_piece_by_piece(start_agent: Any, thinking: str) -> None:
    async with start_agent(visible_reasoning=thinking) as s:
        frames: list[dict[str, Any]] = []

        async def keep(frame: StreamFrame) -> None:
            frames.append(json.loads(frame.data))

        s.ada.receive_frame = keep
        question = await s.send_chat("What is known about water?")
        await s.recorder.first("coder", "stream/close")
        start = s.recorder.sent_by("coder", "reasoning/start", about=question)[0]
        answer = s.recorder.sent_by("coder", "chat", about=question)[0]
        assert {frame["context"] for frame in frames} == {start.id}
        assert frames[0] == {
            "context": start.id,
            "type": "status",
            "event": "start",
            "input": question.body["text"],
            "tools": 0,
        }
        assert frames[-1] == {"context": start.id, "type": "status", "event": "conclusion", "cancelled": False}
        assert "".join(frame["value"] for frame in frames if frame["type"] == "token") == answer.body["text"]
        assert "".join(frame["value"] for frame in frames if frame["type"] == "thinking") == thinking
