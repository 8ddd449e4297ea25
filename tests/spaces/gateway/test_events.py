"""Server-sent events of a space."""

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from mew_protocol.codec import StreamFrame, read_draft
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.core.events import ConnectionId, FrameArrives
from mew_spaces.gateway import server_sent_events
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.server_sent_events import PAGE_BYTES, EventReader, event, event_stream, in_words
from mew_spaces.gateway.service import SpaceService, history_bounds
from mew_spaces.log.memory import Bounds, SpaceLog

from tests.support.channels import RecordingChannel
from tests.support.waiting import PATIENCE_SECONDS

ADA = ParticipantId("ada")


@pytest.fixture
def service(config: SpaceConfig) -> SpaceService:
    return SpaceService(
        config, TokenBook.generate(config), space_log=SpaceLog(epoch="e", bounds=history_bounds(config))
    )


def reader_of(service: SpaceService, name: str = "ada") -> EventReader:
    return EventReader(service, service.tokens.token_of(name) or "", "")


class Reader:
    """Takes events apart."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self.chunks = chunks
        self.waiting: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE_SECONDS):
            while not self.waiting:
                chunk = (await anext(self.chunks)).decode()
                self.waiting += [_parse(block) for block in chunk.split("\n\n") if block]
        return self.waiting.pop(0)


def _parse(block: str) -> dict[str, Any]:
    lines = dict(line.split(": ", 1) for line in block.splitlines())
    return {**lines, "data": json.loads(lines["data"])}


def chat(service: SpaceService, text: str) -> None:
    service.receive(None, ADA, read_draft({"kind": "chat", "payload": {"text": text}}))


def test_an_event_follows_the_format() -> None:
    assert event("envelope", b"{}", id="e-1") == b"id: e-1\nevent: envelope\ndata: {}\n\n"
    assert event("reset", b"{}") == b"event: reset\ndata: {}\n\n"


async def test_the_board_comes_first_then_every_envelope(service: SpaceService) -> None:
    chat(service, "before")
    reader = Reader(event_stream(reader_of(service), None))
    first = await reader.next()
    assert (first["event"], first["id"], first["data"]["space"]) == ("board", "e-1", "demo")
    chat(service, "line\nbreak")
    second = await reader.next()
    assert (second["event"], second["id"]) == ("envelope", "e-2")
    assert second["data"]["payload"]["text"] == "line\nbreak"


async def test_a_resumed_reader_gets_missed_events_in_order(service: SpaceService) -> None:
    for number in range(600):
        chat(service, str(number))
    reader = Reader(event_stream(reader_of(service), "e-100"))
    got = [await reader.next() for _ in range(500)]
    assert [one["data"]["payload"]["text"] for one in got] == [str(number) for number in range(100, 600)]
    assert [one["id"] for one in got] == [f"e-{number}" for number in range(101, 601)]


@pytest.mark.parametrize("since", ["other-5", "e-99", "nonsense", "e-"])
async def test_a_reader_with_an_unknown_position_is_reset(service: SpaceService, since: str) -> None:
    chat(service, "x")
    reader = Reader(event_stream(reader_of(service), since))
    assert await reader.next() == {"event": "reset", "data": {"reason": "history_gone"}}
    assert (await reader.next())["event"] == "board"
    chat(service, "y")
    assert (await reader.next())["data"]["payload"]["text"] == "y"


async def test_a_reader_that_falls_behind_is_reset(config: SpaceConfig) -> None:
    short = config.model_copy(update={"limits": config.limits.model_copy(update={"history_envelopes": 2})})
    service = SpaceService(
        short, TokenBook.generate(short), space_log=SpaceLog(epoch="e", bounds=history_bounds(short))
    )
    reader = Reader(event_stream(reader_of(service), None))
    await reader.next()
    for number in range(5):
        chat(service, str(number))
    assert (await reader.next())["event"] == "reset"
    assert (await reader.next())["id"] == "e-5"


async def test_errors_sent_to_others_are_not_streamed(service: SpaceService) -> None:
    reader = Reader(event_stream(reader_of(service), None))
    await reader.next()
    service.receive(None, ParticipantId("bob"), read_draft({"kind": "participant/clear"}))
    chat(service, "next")
    assert (await reader.next())["data"]["kind"] == "chat"


async def test_a_removed_readers_stream_ends_even_after_a_new_invitation(service: SpaceService) -> None:
    chunks = event_stream(reader_of(service, "bob"), None)
    await anext(chunks)
    for kind in ("space/kick", "space/invite"):
        draft = read_draft({"kind": kind, "payload": {"participant_id": "bob"}})
        receipt = service.receive(None, ADA, draft).receipt
        assert receipt.accepted is not None
    assert service.tokens.knows("bob")
    with anyio.fail_after(PATIENCE_SECONDS):
        assert [chunk async for chunk in chunks] == []


async def test_the_stream_ends_with_the_gateway(service: SpaceService) -> None:
    chunks = event_stream(reader_of(service), None)
    await anext(chunks)
    service.close()
    with anyio.fail_after(PATIENCE_SECONDS):
        assert [chunk async for chunk in chunks] == []


async def test_a_comment_keeps_an_idle_stream_alive(service: SpaceService) -> None:
    chunks = event_stream(reader_of(service), None, keep_alive_seconds=0.01)
    await anext(chunks)
    with anyio.fail_after(PATIENCE_SECONDS):
        assert await anext(chunks) == b": keep-alive\n\n"


async def test_a_reader_from_before_a_restart_gets_the_board_last(config: SpaceConfig) -> None:
    kept = SpaceLog(epoch="e", bounds=Bounds(100, 1_000_000))
    earlier = SpaceService(config, TokenBook.generate(config), space_log=kept)
    chat(earlier, "one")
    chat(earlier, "two")
    restarted = SpaceService(config, TokenBook.generate(config), space_log=kept)
    reader = Reader(event_stream(reader_of(restarted), "e-1"))
    missed = await reader.next()
    board = await reader.next()
    assert (missed["event"], missed["id"]) == ("envelope", "e-2")
    assert (board["event"], board["id"]) == ("board", "e-2")
    chat(restarted, "three")
    assert (await reader.next())["id"] == "e-3"


async def test_a_new_reader_may_ask_for_the_newest_envelopes_without_statuses(service: SpaceService) -> None:
    for number in range(5):
        chat(service, str(number))
        service.receive(
            None, ADA, read_draft({"kind": "participant/status", "payload": {"messages_in_context": number}})
        )
    reader = Reader(event_stream(reader_of(service), None, last=2))
    first = [await reader.next() for _ in range(2)]
    assert [(one["id"], one["data"]["payload"]["text"]) for one in first] == [("e-7", "3"), ("e-9", "4")]
    board = await reader.next()
    assert (board["event"], board["id"]) == ("board", "e-10")


async def test_a_chat_that_names_another_kind_in_its_payload_is_a_chat(service: SpaceService) -> None:
    payload = {"text": "hello", "kind": "participant/status"}
    service.receive(None, ADA, read_draft({"kind": "chat", "payload": payload}))
    reader = Reader(event_stream(reader_of(service), None, last=1))
    assert (await reader.next())["data"]["payload"] == payload


async def test_a_reader_may_follow_stream_frames_that_are_for_it(service: SpaceService) -> None:
    readers = {}
    for name in ("ada", "bob"):
        token = service.tokens.token_of(name) or ""
        entered = EventReader(service, token, "", with_frames=True)
        service.performer.frame_readers.add(entered.receive_frame)
        readers[name] = Reader(event_stream(entered, None))
        await readers[name].next()
    service.attach(ConnectionId(1), RecordingChannel())
    service.join(ConnectionId(1), ADA)
    for payload in ({"direction": "upload"}, {"direction": "upload", "target": ["ada"]}):
        service.receive(ConnectionId(1), ADA, read_draft({"kind": "stream/request", "payload": payload}))
    for number in (2, 1):  # the second stream is for ada only
        frame = StreamFrame(f"stream-{number}", f"#stream-{number}#token {number}")
        service.storage.submit(FrameArrives(ConnectionId(1), ADA, frame))
    got: dict[str, list[dict[str, Any]]] = {name: [] for name in readers}
    for name, reader in readers.items():
        while (one := await reader.next())["event"] != "frame" or one["data"]["stream_id"] != "stream-1":
            got[name].append(one)
        assert one["data"] == {"stream_id": "stream-1", "data": "token 1"}
    seen = {name: [one["data"]["stream_id"] for one in them if one["event"] == "frame"] for name, them in got.items()}
    assert seen == {"ada": ["stream-2"], "bob": []}


def test_a_reader_gets_no_binary_frames(service: SpaceService) -> None:
    reader = EventReader(service, service.tokens.token_of("ada") or "", "", with_frames=True)
    reader.receive_frame(StreamFrame("stream-1", b"#stream-1#\x00"), None)
    assert not reader.frames


async def test_large_envelopes_are_written_in_pieces_of_bounded_size(service: SpaceService) -> None:
    for number in range(8):
        chat(service, f"{number}" * 400_000)
    bound = PAGE_BYTES + 500_000
    chunks = event_stream(reader_of(service), None, last=8)
    sent = [await anext(chunks) for _ in range(5)]
    assert [one.count(b"event: envelope") for one in sent] == [2, 2, 2, 2, 0]
    assert max(map(len, sent)) < bound
    chunks = event_stream(reader_of(service), "e-2")
    missed = [await anext(chunks) for _ in range(3)]
    assert [one.count(b"event: envelope") for one in missed] == [2, 2, 2]


async def test_a_page_with_words_is_written_in_smaller_pieces(service: SpaceService) -> None:
    for number in range(8):
        chat(service, f"{number}" * 100_000)
    token = service.tokens.token_of("ada") or ""
    chunks = event_stream(EventReader(service, token, "", with_views=True), None, last=8)
    sent = [await anext(chunks) for _ in range(5)]
    assert [one.count(b"event: envelope") for one in sent] == [2, 2, 2, 2, 0]


def answer_of(entries: list[dict[str, Any]]) -> bytes:
    head = {"from": "coder", "to": ["ada"], "correlation_id": ["q"], "kind": "participant/history"}
    return json.dumps({**head, "payload": {"entries": entries}}, separators=(",", ":")).encode()


def change(number: int) -> dict[str, Any]:
    return {"number": number, "at": "2026-11-29T05:00:00Z", "trigger": "threshold", "basis": "projected"}


def test_words_of_an_answer_are_computed_once_for_all_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[object] = []
    monkeypatch.setattr(server_sent_events, "said", lambda envelope: computed.append(envelope))
    for _ in range(2):
        for number in range(1_000):
            in_words(answer_of([change(number), change(20_000)]))
    assert len(computed) == 1_000


@pytest.mark.parametrize(
    "data",
    [b'{"kind":"chat","payload":{"text":"%s"}}' % (b"x" * 1_000), answer_of([change(1)] * 10_000)],
    ids=["a chat", "a large answer"],
)
def test_envelopes_without_words_are_neither_read_nor_kept(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[object] = []
    monkeypatch.setattr(server_sent_events, "said", lambda envelope: computed.append(envelope))
    references = sys.getrefcount(data)
    assert in_words(data) == b""
    assert sys.getrefcount(data) == references
    assert not computed


def test_only_the_newest_of_many_changes_are_read() -> None:
    words = json.loads(in_words(answer_of([{"unreadable": True}] * 100 + [change(n) for n in range(200)])))
    assert [one["number"] for one in words["changes"]] == list(range(200))


def test_frames_that_wait_for_a_slow_reader_are_bounded(service: SpaceService) -> None:
    reader = EventReader(service, service.tokens.token_of("ada") or "", "", with_frames=True)
    for number in range(20):
        reader.receive_frame(StreamFrame("stream-1", f"#stream-1#{number} " + "x" * 200_000), None)
    assert sum(map(len, reader.frames)) == reader.frame_bytes <= PAGE_BYTES
    assert b'"19 x' in reader.frames[-1]
    reader.receive_frame(StreamFrame("stream-1", "#stream-1#" + "x" * 2_000_000), None)
    assert len(reader.frames) == 1  # a single large one arrives


async def test_readers_learn_which_figures_are_old(service: SpaceService) -> None:
    connection = service.new_connection()
    service.attach(connection, RecordingChannel())
    service.join(connection, ParticipantId("coder"))
    figures = {"messages_in_context": 1, "tokens": 704, "max_tokens": 20_000}
    service.receive(connection, ParticipantId("coder"), read_draft({"kind": "participant/status", "payload": figures}))
    reader = Reader(event_stream(reader_of(service), None))
    assert (await reader.next())["event"] == "board"
    chat(service, "hello")
    service.attention.refresh()
    assert (await reader.next())["event"] == "envelope"
    old = await reader.next()
    assert (old["event"], old["data"]["coder"]["outdated"]) == ("outdated", "messages_since")
    returned = Reader(event_stream(reader_of(service), str(service.log.position)))
    assert [(await returned.next())["event"] for _ in range(2)] == ["attention", "outdated"]
