"""Messages of the gateway."""

from mew_protocol.payloads.system import ActiveStream, ErrorPayload, Join, Presence, Welcome


def test_a_welcome_lists_members_and_streams() -> None:
    welcome = Welcome.model_validate(
        {"you": {"id": "ada", "capabilities": [{"kind": "chat"}]}, "participants": [{"id": "bob"}]}
    )
    assert welcome.participants[0].capabilities == ()
    assert welcome.active_streams == ()
    assert welcome.board is None


def test_a_stream_keeps_the_metadata_of_its_request() -> None:
    stream = ActiveStream.model_validate({"stream_id": "s", "owner": "ada", "sample_rate": 8000})
    assert stream.model_dump()["sample_rate"] == 8000


def test_an_error_keeps_keys_of_the_typescript_gateway() -> None:
    error = ErrorPayload.model_validate({"error": "capability_violation", "attempted_kind": "chat", "odd": 1})
    assert error.attempted_kind == "chat"
    assert Presence.model_validate({"event": "leave", "participant": {"id": "bob"}}).participant.id == "bob"
    assert Join.model_validate({"participantId": "ada"}).participant_id == "ada"
