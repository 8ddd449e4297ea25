"""Opening, owning, writing and closing streams by envelope."""

from typing import Any

import pytest
from mew_protocol import errors
from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.core.events import ConnectionId

from tests.support.space_driver import SpaceDriver


@pytest.fixture
def driver(config: SpaceConfig) -> SpaceDriver:
    """Connect ada, coder and files; coder owns stream-1."""
    driver = SpaceDriver(config)
    for number, name in enumerate(("ada", "coder", "files"), start=1):
        driver.join(number, name)
    driver.send_envelope(2, "coder", "stream/request", {"direction": "upload", "description": "d"}, id="request")
    return driver


def refused(driver: SpaceDriver, number: int, name: str, kind: str, payload: dict[str, Any]) -> str:
    receipt = driver.send_envelope(number, name, kind, payload)
    assert receipt.accepted is None
    assert receipt.refused is not None
    return receipt.refused.error


def test_a_stream_opens_before_its_request_is_echoed(driver: SpaceDriver) -> None:
    assert driver.take(1)[-2:] == ["stream/open stream-1", "stream/request"]
    opened = driver.history[-2]
    assert (opened.sender, opened.to, opened.correlation_id) == ("gateway", ("coder",), ("request",))
    assert opened.body == {
        "stream_id": "stream-1",
        "encoding": "text",
        "owner": "coder",
        "authorized_writers": ["coder"],
    }


def test_targets_must_be_members(driver: SpaceDriver) -> None:
    driver.send_envelope(2, "coder", "stream/request", {"direction": "upload", "target": "ada"})
    assert driver.history[-2].body["target"] == ["ada"]
    receipt = driver.send_envelope(2, "coder", "stream/request", {"direction": "upload", "target": ["ada", "bob"]})
    assert receipt.refused is not None
    assert (receipt.refused.error, receipt.refused.targets) == (errors.TARGET_NOT_FOUND, ("bob",))
    assert list(driver.space.state.streams) == ["stream-1", "stream-2"]


def test_a_target_named_twice_receives_a_frame_once(driver: SpaceDriver) -> None:
    driver.send_envelope(2, "coder", "stream/request", {"direction": "upload", "target": ["ada", "files", "ada"]})
    assert driver.history[-2].body["target"] == ["ada", "files"]
    driver.take(1)
    driver.write(2, "coder", "stream-2", "x")
    assert driver.take(1) == ["#stream-2#x"]


@pytest.mark.parametrize("odd", [[], {}, 5, None, ["stream-1"]])
def test_a_close_without_a_known_stream_is_passed_on(driver: SpaceDriver, odd: object) -> None:
    assert driver.send_envelope(2, "coder", "stream/close", {"stream_id": odd}).accepted is not None
    assert list(driver.space.state.streams) == ["stream-1"]
    driver.send_envelope(2, "coder", "stream/close", {"stream_id": odd}, correlation_id=["request"])
    assert driver.space.state.streams == {}


def test_only_a_valid_request_opens_a_stream(driver: SpaceDriver) -> None:
    assert driver.send_envelope(2, "coder", "stream/request", {"direction": "upload"}).answer == {
        "status": "stream_opened",
        "stream_id": "stream-2",
    }
    assert refused(driver, 2, "coder", "stream/request", {"direction": 5}) == errors.INVALID_PAYLOAD
    driver.join(4, "bob")
    assert [stream["stream_id"] for stream in driver.last(4).body["active_streams"]] == ["stream-1", "stream-2"]


def test_a_participant_owns_at_most_its_limit_of_streams(config: SpaceConfig) -> None:
    few = config.model_copy(update={"limits": config.limits.model_copy(update={"streams_per_member": 1})})
    driver = SpaceDriver(few)
    driver.join(2, "coder")
    driver.send_envelope(2, "coder", "stream/request", {"direction": "upload"})
    assert refused(driver, 2, "coder", "stream/request", {"direction": "upload"}) == errors.LIMIT_EXCEEDED


@pytest.mark.parametrize(
    "headers",
    [
        {"payload": {"stream_id": "stream-1"}},
        {"payload": {}, "correlation_id": ["stream-1"]},
        {"correlation_id": "request"},
    ],
)
def test_an_owner_closes_a_stream_by_any_of_its_ids(driver: SpaceDriver, headers: dict[str, Any]) -> None:
    driver.send_envelope(2, "coder", "stream/close", headers.pop("payload", None), **headers)
    assert driver.space.state.streams == {}
    assert driver.history[-1].kind == "stream/close"


def test_the_id_of_its_opening_closes_a_stream(driver: SpaceDriver) -> None:
    driver.send_envelope(2, "coder", "stream/close", None, correlation_id=[driver.history[-2].id])
    assert driver.space.state.streams == {}


def test_only_owner_and_writers_close_a_stream(driver: SpaceDriver) -> None:
    assert driver.send_envelope(3, "files", "stream/close", {"reason": "x"}).accepted is not None
    assert refused(driver, 3, "files", "stream/close", {"stream_id": "stream-1"}) == errors.UNAUTHORIZED
    assert list(driver.space.state.streams) == ["stream-1"]


def test_an_owner_grants_and_revokes_writing(driver: SpaceDriver) -> None:
    grant = {"stream_id": "stream-1", "participant_id": "files", "reason": "help"}
    receipt = driver.send_envelope(2, "coder", "stream/grant-write", grant, id="g")
    assert receipt.answer == {"status": "granted", "stream_id": "stream-1", "authorized_writers": ["coder", "files"]}
    reported = driver.history[-1]
    assert (reported.kind, reported.sender, reported.to, reported.correlation_id) == (
        "stream/write-granted",
        "gateway",
        ("ada", "coder", "files"),
        ("g",),
    )
    assert reported.body == {**grant, "authorized_writers": ["coder", "files"]}
    driver.take(1)
    driver.write(3, "files", "stream-1", "mine")
    assert driver.take(1) == ["#stream-1#mine"]
    driver.send_envelope(2, "coder", "stream/revoke-write", {"stream_id": "stream-1", "participant_id": "files"})
    assert driver.history[-1].body["authorized_writers"] == ["coder"]
    driver.write(3, "files", "stream-1", "again")
    assert driver.take(1) == ["stream/write-revoked stream-1"]


def test_a_transferred_stream_has_a_new_owner_and_writer(driver: SpaceDriver) -> None:
    driver.send_envelope(2, "coder", "stream/transfer-ownership", {"stream_id": "stream-1", "new_owner": "files"})
    assert driver.history[-1].kind == "stream/ownership-transferred"
    assert driver.history[-1].body == {
        "stream_id": "stream-1",
        "previous_owner": "coder",
        "new_owner": "files",
        "authorized_writers": ["files"],
    }
    assert refused(driver, 2, "coder", "stream/close", {"stream_id": "stream-1"}) == errors.UNAUTHORIZED


@pytest.mark.parametrize("kind", ["stream/grant-write", "stream/revoke-write", "stream/transfer-ownership"])
def test_only_the_owner_changes_the_rights_of_a_stream(driver: SpaceDriver, kind: str) -> None:
    def body(stream: str, name: str) -> dict[str, str]:
        return {"stream_id": stream, "participant_id": name, "new_owner": name}

    assert refused(driver, 3, "files", kind, body("stream-1", "ada")) == errors.UNAUTHORIZED
    assert refused(driver, 2, "coder", kind, body("stream-9", "ada")) == errors.STREAM_NOT_FOUND
    assert refused(driver, 2, "coder", kind, {}) == errors.INVALID_PAYLOAD
    assert [stream.writers for stream in driver.space.state.streams.values()] == [("coder",)]


def test_rights_go_to_members_only_and_the_owner_keeps_its_own(driver: SpaceDriver) -> None:
    absent = {"stream_id": "stream-1", "participant_id": "bob", "new_owner": "bob"}
    assert refused(driver, 2, "coder", "stream/grant-write", absent) == errors.PARTICIPANT_NOT_FOUND
    assert refused(driver, 2, "coder", "stream/transfer-ownership", absent) == errors.PARTICIPANT_NOT_FOUND
    own = {"stream_id": "stream-1", "participant_id": "coder"}
    assert refused(driver, 2, "coder", "stream/revoke-write", own) == errors.INVALID_OPERATION


def test_a_writer_that_stays_away_loses_the_right_to_write(driver: SpaceDriver) -> None:
    driver.send_envelope(2, "coder", "stream/grant-write", {"stream_id": "stream-1", "participant_id": "files"})
    driver.leave(3, "files")
    driver.wait(6)
    assert [stream.writers for stream in driver.space.state.streams.values()] == [("coder",)]


def test_other_stream_kinds_are_passed_on(driver: SpaceDriver) -> None:
    assert driver.send_envelope(2, "coder", "stream/other", {"stream_id": "stream-9"}).accepted is not None
    assert list(driver.space.state.streams) == ["stream-1"]


def test_a_request_cannot_forge_the_gateways_description(driver: SpaceDriver) -> None:
    forged = {
        "direction": "upload",
        "owner": "eve",
        "stream_id": "x",
        "authorized_writers": ["eve"],
        "created": 1,
        "sample_rate": 8000,
    }
    driver.send_envelope(2, "coder", "stream/request", forged)
    driver.join(4, "bob")
    assert driver.last(4).body["active_streams"][1] == {
        "stream_id": "stream-2",
        "owner": "coder",
        "authorized_writers": ["coder"],
        "created": "2026-01-01T00:00:00.000Z",
        "direction": "upload",
        "sample_rate": 8000,
    }


def test_a_closed_streams_id_is_not_used_again(driver: SpaceDriver) -> None:
    driver.send_envelope(2, "coder", "stream/close", {"stream_id": "stream-1"})
    assert driver.send_envelope(2, "coder", "stream/request", {"direction": "upload"}).answer["stream_id"] == "stream-2"


def test_streams_keep_their_owner_over_a_restart(driver: SpaceDriver, config: SpaceConfig) -> None:
    restarted = SpaceDriver(config, driver.stored)
    restarted.join(1, "coder")
    assert [one["stream_id"] for one in restarted.last(1).body["active_streams"]] == ["stream-1"]
    assert (
        restarted.send_envelope(1, "coder", "stream/request", {"direction": "upload"}).answer["stream_id"] == "stream-2"
    )
    assert restarted.send_envelope(1, "coder", "stream/close", {"stream_id": "stream-1"}).accepted is not None


def test_a_writer_that_leaves_loses_its_right_for_all_to_see(driver: SpaceDriver) -> None:
    driver.send_envelope(2, "coder", "stream/grant-write", {"stream_id": "stream-1", "participant_id": "ada"})
    driver.leave(1, "ada")
    driver.take(2)
    driver.wait(5)
    inbox = driver.inbox[ConnectionId(2)]
    revoked = next(one for one in reversed(inbox) if isinstance(one, Envelope) and one.kind.startswith("stream/"))
    assert (revoked.kind, revoked.sender) == ("stream/write-revoked", "gateway")
    assert revoked.body == {
        "stream_id": "stream-1",
        "participant_id": "ada",
        "reason": "participant_disconnected",
        "authorized_writers": ["coder"],
    }


def test_a_request_without_direction_is_refused(driver: SpaceDriver) -> None:
    assert refused(driver, 2, "coder", "stream/request", {}) == errors.INVALID_PAYLOAD
    assert "payload.direction is missing" in str(driver.last(2).body["message"])


@pytest.mark.parametrize("kind", ["*", "**"])
def test_no_wildcard_alone_lets_a_participant_open_streams(config: SpaceConfig, kind: str) -> None:
    given = {
        "participants": {"eve": {"capabilities": [{"kind": kind}]}, "bob": {"capabilities": [{"kind": "stream/*"}]}}
    }
    like = config.model_copy(update={"compat": "reference"})
    driver = SpaceDriver(SpaceConfig.model_validate({**like.model_dump(exclude_unset=True), **given}))
    driver.join(1, "eve")
    driver.join(2, "bob")
    opening = {"stream_id": "stream-7", "encoding": "text"}
    assert driver.send_envelope(1, "eve", "stream/open", opening).accepted is None
    assert driver.send_envelope(2, "bob", "stream/open", opening).accepted is not None
    assert driver.send_envelope(2, "bob", "stream/request", {}).answer["stream_id"] == "stream-1"


def test_the_refusal_of_an_opening_names_the_reference_mode(driver: SpaceDriver) -> None:
    assert refused(driver, 2, "coder", "stream/open", {"stream_id": "x"}) == errors.RESERVED_KIND
    assert "compat: reference" in str(driver.last(2).body["message"])
