"""What the gateway says itself."""

from datetime import UTC, datetime

import pytest
from mew_protocol.ids import STREAM_GATEWAY
from mew_protocol.payloads.system import SystemError as ErrorPayload
from mew_spaces.core.system_messages import Voice

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def voice() -> Voice:
    return Voice(iter(["first", "second"]).__next__)


def test_every_envelope_has_an_id_of_its_own_a_time_and_a_speaker(voice: Voice) -> None:
    said = voice.say("system/presence", {"event": "leave"}, now=NOW)
    assert (said.id, said.ts, said.sender, said.to) == ("first", "2026-01-01T00:00:00.000Z", "system:gateway", None)
    told = voice.say("stream/close", {}, now=NOW, to=("ada",), correlation_id=("r",), speaker=STREAM_GATEWAY)
    assert (told.id, told.sender, told.to, told.correlation_id) == ("second", "gateway", ("ada",), ("r",))


def test_a_complaint_names_whom_it_is_for_and_what_it_is_about_where_that_is_known(voice: Voice) -> None:
    payload = ErrorPayload(error="not_joined", message="join first")
    known = voice.complain(payload, "ada", now=NOW, about="msg-1")
    assert known.as_dict()["payload"] == {"error": "not_joined", "message": "join first"}
    assert (known.kind, known.to, known.correlation_id) == ("system/error", ("ada",), ("msg-1",))
    unknown = voice.complain(payload, None, now=NOW)
    assert (unknown.to, unknown.correlation_id) == (None, None)
