"""Envelopes that the gateway itself sends."""

from datetime import UTC, datetime

import pytest
from mew_protocol.ids import STREAM_GATEWAY
from mew_protocol.payloads.system import ErrorPayload
from mew_spaces.core.system_messages import DerivedIds, SystemMessages

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def messages() -> SystemMessages:
    return SystemMessages(DerivedIds(new_id=iter(["first", "second"]).__next__, new_token=str))


def test_each_message_has_a_new_id_a_time_and_a_sender(messages: SystemMessages) -> None:
    one = messages.compose("system/presence", {"event": "leave"}, now=NOW)
    assert (one.id, one.ts, one.sender, one.to) == ("first", "2026-01-01T00:00:00.000Z", "system:gateway", None)
    two = messages.compose("stream/close", {}, now=NOW, to=("ada",), correlation_id=("r",), sender=STREAM_GATEWAY)
    assert (two.id, two.sender, two.to, two.correlation_id) == ("second", "gateway", ("ada",), ("r",))


def test_an_error_names_its_addressee_and_envelope_if_known(messages: SystemMessages) -> None:
    payload = ErrorPayload(error="not_joined", message="join first")
    known = messages.compose_error(payload, "ada", now=NOW, envelope_id="msg-1")
    assert known.as_dict()["payload"] == {"error": "not_joined", "message": "join first"}
    assert (known.kind, known.to, known.correlation_id) == ("system/error", ("ada",), ("msg-1",))
    unknown = messages.compose_error(payload, None, now=NOW)
    assert (unknown.to, unknown.correlation_id) == (None, None)
