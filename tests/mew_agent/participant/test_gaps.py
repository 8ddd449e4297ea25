"""Losses are reported: frames of streams, and events that slow handlers could not keep up with."""

from functools import partial
from pathlib import Path
from random import Random

import anyio
import pytest
from mew_protocol.codec import StreamFrame, encode_frame
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.participant.client import Client, Credentials
from mew_agent.participant.confirmed_delivery import MAX_COUNTED_STREAMS, FrameCounts, Message
from mew_agent.participant.event_handlers import EVENT_BUFFER, EVENT_BUFFER_BYTES, Listeners
from mew_agent.participant.gaps import HistoryGap, StreamGap
from mew_agent.participant.participant import Participant
from tests.support.faulty_link import faulty_link
from tests.support.waiting import PATIENCE_SECONDS, until

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}], tokens: [a]}
  bob: {command: x, capabilities: [{kind: "*"}], tokens: [b]}
limits: {envelopes_per_second: 100000, envelope_burst: 100000}
history: {durability: DURABILITY}
"""


def counted(run: str, **counts: int) -> dict[str, object]:
    return {"run": run, "counts": {name.replace("_", "-"): count for name, count in counts.items()}}


class FrameReader:
    """Checks that the frames of each stream continue where the last one ended, or after a gap of the right size."""

    def __init__(self) -> None:
        self.expected: dict[str, int] = {}
        self.missed = 0

    async def receive(self, message: Message) -> None:
        if isinstance(message, StreamGap):
            assert message.missed is not None
            self.missed += message.missed
            self.expected[message.stream_id] = self.expected.get(message.stream_id, 0) + message.missed
        elif isinstance(message, StreamFrame):
            assert int(message.data) == self.expected.get(message.stream_id, 0)
            self.expected[message.stream_id] = int(message.data) + 1


@pytest.mark.parametrize("durability", ["flushed", "synced"])
async def test_every_frame_arrives_or_is_counted_as_missed(durability: str, tmp_path: Path) -> None:
    random, reader, sent = Random(durability), FrameReader(), {}
    async with (
        serve_gateway(parse_space(SPACE.replace("DURABILITY", durability)), state=tmp_path) as gateway,
        faulty_link(gateway.port) as link,
        Participant(f"ws://127.0.0.1:{gateway.port}", space="demo", id="bob", token="b") as bob,
        anyio.create_task_group() as tasks,
    ):
        ada = Client(Credentials(link.url, "demo", "ada", "a"))
        tasks.start_soon(ada.run, reader.receive)
        with anyio.fail_after(PATIENCE_SECONDS):
            await ada.caught_up.wait()
            for _ in range(6):
                opening = await bob.ask("stream/request", {"direction": "up"}, to="gateway", answer="stream/open")
                stream = str(opening.body["stream_id"])
                sent[stream] = random.randrange(60, 120)
                for number in range(sent[stream]):
                    await bob.send_frame(encode_frame(stream, str(number)))
                    if random.random() < 0.03:
                        await link.cut("reset")
                    if random.random() < 0.1:
                        await bob.chat("between")
                    if random.random() < 0.1:
                        await anyio.sleep(random.uniform(0, 0.05))
                if random.random() < 0.5:
                    await bob.send("stream/close", {"stream_id": stream})
            while reader.expected != sent:  # frames that are missing at the end are noticed with the next welcome
                joins = ada.joins
                await link.cut("close")
                await until(lambda before=joins: ada.joins > before)  # type: ignore[misc]
                with anyio.move_on_after(0.3):
                    await until(lambda: reader.expected == sent)
        await ada.aclose()
    assert reader.missed > 0


def test_frames_from_before_the_first_welcome_are_not_missed() -> None:
    counts = FrameCounts()
    assert list(counts.compare(counted("r", stream_1=5))) == []
    counts.add("stream-1")
    assert list(counts.compare(counted("r", stream_1=9))) == [StreamGap("stream-1", 3)]
    assert list(counts.compare(counted("r", stream_1=9))) == []


def test_a_restarted_gateway_does_not_know_how_many_frames_are_missing() -> None:
    counts = FrameCounts()
    assert list(counts.compare(counted("r"))) == []
    counts.add("stream-1")
    counts.add("stream-2")
    counts.close("stream-2")
    counts.add("stream-3")
    gaps = [StreamGap("stream-1"), StreamGap("stream-3"), StreamGap("stream-4")]
    assert list(counts.compare(counted("s", stream_1=0, stream_4=2))) == gaps
    assert list(counts.compare(counted("s", stream_1=2, stream_4=2))) == [StreamGap("stream-1", 2)]


def test_a_stream_id_that_is_used_again_after_a_restart_is_counted() -> None:
    counts = FrameCounts()
    assert list(counts.compare(counted("r"))) == []
    counts.add("stream-1")
    counts.close("stream-1")
    assert list(counts.compare(counted("s"))) == []
    counts.add("stream-1")
    assert list(counts.compare(counted("t"))) == [StreamGap("stream-1")]


def test_a_gateway_without_counts_reports_no_gaps() -> None:
    counts = FrameCounts()
    counts.add("stream-1")
    answers: tuple[object, ...] = (None, [], {"counts": 5}, {"run": "r", "counts": {"stream-1": "many"}})
    for frames in answers:
        assert list(counts.compare(frames)) == []


def test_the_number_of_counted_streams_is_bounded() -> None:
    counts = FrameCounts()
    for number in range(MAX_COUNTED_STREAMS + 10):
        counts.add(f"stream-{number}")
        counts.close(f"stream-{number}")
    assert len(counts._counts) == len(counts._closed) == MAX_COUNTED_STREAMS


async def test_slow_handlers_get_a_gap_where_events_were_dropped(caplog: pytest.LogCaptureFixture) -> None:
    events, seen, failures, started, resumed = Listeners(), [], list[Exception](), anyio.Event(), anyio.Event()

    async def handle(event: object) -> None:
        started.set()
        await resumed.wait()
        seen.append(event)

    events.add(object, handle)
    async with anyio.create_task_group() as tasks:
        await tasks.start(events.run, failures.append)
        events.emit(None, "first")
        await started.wait()
        for number in range(EVENT_BUFFER + 50):
            events.emit(None, number)
        resumed.set()
        await until(lambda: len(seen) == EVENT_BUFFER + 2)
        events.emit(None, "last")
        await until(lambda: seen[-1] == "last")
        tasks.cancel_scope.cancel()
    events.emit(None, "after the end")
    assert seen == ["first", *range(EVENT_BUFFER), HistoryGap("handlers_too_slow"), "last"]
    assert len(caplog.messages) == 1
    assert failures == []


async def test_handlers_that_stay_too_slow_get_one_gap_and_not_one_for_each_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events, seen, allowed = Listeners(), list[object](), anyio.Semaphore(0)

    async def handle(event: object) -> None:
        await allowed.acquire()
        seen.append(event)

    def has_seen(number: int) -> bool:
        return len(seen) >= number

    events.add(object, handle)
    async with anyio.create_task_group() as tasks:
        await tasks.start(events.run, lambda _: None)
        for number in range(EVENT_BUFFER + 10):
            events.emit(None, number)
        for number in range(20):
            allowed.release()
            await until(partial(has_seen, number + 1))
            events.emit(None, "more")
            events.emit(None, "more")
        tasks.cancel_scope.cancel()
    assert len(caplog.messages) == 1


async def test_few_large_events_that_wait_are_dropped_too() -> None:
    events, seen, started, resumed = Listeners(), list[object](), anyio.Event(), anyio.Event()

    async def handle(event: object) -> None:
        started.set()
        await resumed.wait()
        seen.append(event)

    events.add(object, handle)
    async with anyio.create_task_group() as tasks:
        await tasks.start(events.run, lambda _: None)
        events.emit(None, "first")
        await started.wait()
        for number in range(6):
            events.emit(None, number, size_bytes=EVENT_BUFFER_BYTES // 4)
        resumed.set()
        await until(lambda: len(seen) == 6)
        tasks.cancel_scope.cancel()
    assert seen == ["first", 0, 1, 2, 3, HistoryGap("handlers_too_slow")]
