"""Open streams and their rights."""

from datetime import UTC, datetime
from typing import Any

from mew_protocol.envelope import Envelope
from mew_protocol.ids import ParticipantId
from mew_spaces.core.streams import Stream, Streams

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOB = ParticipantId("bob")


def opened(streams: Streams, **payload: Any) -> Stream:
    request = Envelope.write("stream/request", id="request", ts="t", sender="ada", payload=payload)
    return streams.open(request, targets=(), now=NOW)


def test_ids_count_up_and_are_never_used_again() -> None:
    streams = Streams()
    first = opened(streams)
    streams.close(first.id)
    assert [first.id, opened(streams).id] == ["stream-1", "stream-2"]
    assert [stream.id for stream in streams] == ["stream-2"]


def test_a_description_keeps_the_requests_metadata_and_nothing_forged() -> None:
    stream = opened(
        Streams(),
        direction="upload",
        sample_rate=8000,
        owner="eve",
        stream_id="x",
        authorized_writers=["eve"],
        created=1,
    )
    assert stream.describe().model_dump(exclude_unset=True) == {
        "stream_id": "stream-1",
        "owner": "ada",
        "authorized_writers": ("ada",),
        "direction": "upload",
        "created": "2026-01-01T00:00:00.000Z",
        "sample_rate": 8000,
    }


def test_a_stream_goes_by_its_id_its_requests_and_any_name_it_is_given() -> None:
    streams = Streams()
    stream = streams.name(opened(streams), "open-id")
    for name in ("stream-1", "request", "open-id"):
        assert streams.named_by(["unknown", None, name]) == stream
    assert streams.named_by(["unknown", None]) is None
    assert streams.get("request") is None


def test_writers_come_and_go_and_ownership_moves() -> None:
    streams = Streams()
    stream = opened(streams)
    stream = streams.let_write(stream, BOB)
    assert streams.let_write(stream, BOB).writers == ("ada", "bob")
    assert streams.stop_writing(stream, "bob").writers == ("ada",)
    moved = streams.give_to(stream, BOB)
    assert (moved.owner, moved.writers) == ("bob", ("bob",))
    assert streams.owned_by("bob") == (moved,)
    assert streams.owned_by("ada") == ()
