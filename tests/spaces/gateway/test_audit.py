"""What the logs say, line by line."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mew_protocol.codec import read_draft
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.config.settings import GatewayLogging
from mew_spaces.gateway.audit import CAPABILITY_DECISIONS, ENVELOPE_HISTORY, AuditLog, logging_options
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.log_writer import LogWriter
from mew_spaces.gateway.service import SpaceService

from tests.support.channels import RecordingChannel

ADA, BOB = ParticipantId("ada"), ParticipantId("bob")

NOW, STAMP = datetime(2026, 1, 2, 3, 4, 5, 678_900, UTC), "2026-01-02T03:04:05.678Z"


class Logged:
    """A space with two members whose logs are read when it is over."""

    def __init__(self, config: SpaceConfig, folder: Path, writer: LogWriter | None = None, **options: Any) -> None:
        self.folder = folder
        self.writer = writer or LogWriter()
        audit = AuditLog(folder, "demo", GatewayLogging(**options), self.writer)
        self.service = SpaceService(
            config, TokenBook.generate(config), writer=self.writer, audit=audit, clock=lambda: NOW
        )
        self.connections = {}
        for name in (ADA, BOB):
            self.connections[name] = connection = self.service.new_connection()
            self.service.attach(connection, RecordingChannel())
            self.service.join(connection, name)

    def send_envelope(
        self, name: ParticipantId, kind: str, payload: Any = None, *, http: bool = False, **headers: Any
    ) -> Any:
        written = {"from" if key == "sender" else key: value for key, value in headers.items()}
        draft = read_draft({"kind": kind, "payload": payload, **written})
        if http:
            return self.service.receive(None, name, draft).receipt
        return self.service.receive(self.connections[name], name, draft).receipt

    def lines(self, name: str = ENVELOPE_HISTORY) -> list[str]:
        self.writer.close()
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def about(self, envelope_id: str, name: str = ENVELOPE_HISTORY) -> list[dict[str, Any]]:
        key = "id" if name == ENVELOPE_HISTORY else "envelope_id"
        return [one for line in self.lines(name) if (one := json.loads(line)).get(key) == envelope_id]


@pytest.fixture
def logged(config: SpaceConfig, tmp_path: Path) -> Logged:
    return Logged(config, tmp_path / "logs")


def test_an_envelope_has_one_receipt_and_a_delivery_for_each_member(logged: Logged) -> None:
    logged.send_envelope(BOB, "chat", {"text": "ü"}, id="mine", ts="2026-01-01T00:00:00Z")
    texts = [line for line in logged.lines() if '"id":"mine"' in line]
    envelope = (
        '{"protocol":"mew/v0.4","id":"mine","ts":"2026-01-01T00:00:00Z","from":"bob","kind":"chat",'
        '"payload":{"text":"ü"}}'
    )
    received = (
        f'{{"timestamp":"{STAMP}","event":"received","id":"mine","envelope":{envelope},"participant":"bob",'
        '"space_id":"demo","direction":"inbound","transport":"websocket"}'
    )
    assert texts == [
        received,
        *(
            f'{{"timestamp":"{STAMP}","event":"delivered","id":"mine","envelope":{envelope},"participant":"{name}",'
            '"space_id":"demo","direction":"outbound","transport":"websocket",'
            '"metadata":{"source_participant":"bob"}}'
            for name in ("ada", "bob")
        ),
    ]


def test_a_decision_records_the_required_and_the_matched_capability(logged: Logged) -> None:
    logged.send_envelope(BOB, "chat", {"text": "x"}, id="a", correlation_id=["q"])
    (line,) = [line for line in logged.lines(CAPABILITY_DECISIONS) if '"envelope_id":"a"' in line]
    baseline = '{"id":"mcp-response","kind":"mcp/response"}'
    assert line == (
        f'{{"timestamp":"{STAMP}","event":"capability_check","envelope_id":"a","participant":"bob","space_id":"demo",'
        '"result":"allowed","required_capability":"chat","matched_capability":{"kind":"chat"},'
        f'"matched_source":"static","granted_capabilities":[{{"kind":"chat"}},{baseline}],'
        '"metadata":{"source":"websocket","transport":"websocket","correlation_id":["q"]}}'
    )


def test_a_refused_envelope_is_logged_with_its_error(logged: Logged) -> None:
    logged.send_envelope(BOB, "participant/clear", id="no", http=True)
    assert [(one["event"], one["transport"]) for one in logged.about("no")] == [
        ("received", "http"),
        ("rejected", "http"),
    ]
    assert logged.about("no")[1]["metadata"] == {"reason": "capability_violation"}
    (denied,) = logged.about("no", CAPABILITY_DECISIONS)
    assert (denied["result"], "matched_capability" in denied, denied["metadata"]["source"]) == (
        "denied",
        False,
        "http_api",
    )
    reported = [json.loads(line) for line in logged.lines() if '"system/error"' in line]
    assert [(one["event"], one["participant"]) for one in reported] == [("delivered", "bob")]


def test_envelopes_without_a_capability_check_have_no_decision(logged: Logged) -> None:
    logged.send_envelope(BOB, "chat", {"text": "x"}, id="foreign", sender="ada")
    assert [one["event"] for one in logged.about("foreign")] == ["received", "rejected"]
    assert logged.about("foreign", CAPABILITY_DECISIONS) == []


def test_grants_and_heartbeats_have_their_own_sources(logged: Logged) -> None:
    logged.send_envelope(ADA, "capability/grant", {"recipient": "bob", "capabilities": [{"kind": "x/*"}]}, id="grant")
    logged.send_envelope(BOB, "x/y", id="dynamic")
    logged.send_envelope(BOB, "system/heartbeat", id="implicit")
    for name in ("dynamic", "implicit"):
        (one,) = logged.about(name, CAPABILITY_DECISIONS)
        assert one["matched_source"] == name
    note = logged.about("grant", CAPABILITY_DECISIONS)[-1]
    assert {key: note[key] for key in ("event", "participant", "granted_capabilities", "metadata")} == {
        "event": "capability_grant",
        "participant": "bob",
        "granted_capabilities": [{"kind": "x/*"}],
        "metadata": {"by": "ada", "grant_id": "grant"},
    }


def test_others_receive_the_join_and_the_joiner_a_welcome(logged: Logged) -> None:
    reported = [json.loads(line) for line in logged.lines()]
    welcomes = [one["participant"] for one in reported if one["envelope"]["kind"] == "system/welcome"]
    presences = [one["participant"] for one in reported if one["envelope"]["kind"] == "system/presence"]
    assert (welcomes, presences) == (["ada", "bob"], ["ada"])


def test_the_token_of_an_invitation_is_not_logged(logged: Logged) -> None:
    token = logged.send_envelope(ADA, "space/invite", {"participant_id": "eve"}).answer["token"]
    assert token not in "\n".join(logged.lines())
    assert token not in "\n".join(logged.lines(CAPABILITY_DECISIONS))


@pytest.mark.parametrize(
    ("options", "recipients"),
    [
        ({"per_member_up_to": 2}, ["ada", "bob"]),
        ({"per_member_up_to": 1}, [None]),
        ({"per_member_up_to": 1, "delivered": "always"}, ["ada", "bob"]),
        ({"delivered": "never"}, []),
    ],
)
def test_deliveries_to_many_members_are_one_line_with_a_number(
    config: SpaceConfig, tmp_path: Path, options: dict[str, Any], recipients: list[str | None]
) -> None:
    logged = Logged(config, tmp_path, **options)
    logged.send_envelope(BOB, "chat", {"text": "x"}, id="a")
    logged.send_envelope(BOB, "stream/request", id="refused")
    logged.send_envelope(ADA, "stream/request", {"direction": "upload"}, id="b")
    for name in ("a", "b"):
        delivered = [one for one in logged.about(name) if one["event"] == "delivered"]
        assert [one.get("participant") for one in delivered] == recipients
        if recipients == [None]:
            sender = "bob" if name == "a" else "ada"
            assert delivered[0]["metadata"] == {"source_participant": sender, "recipients": 2}


def test_a_very_long_envelope_is_logged_as_its_size(config: SpaceConfig, tmp_path: Path) -> None:
    logged = Logged(config, tmp_path, max_envelope_bytes=300)
    logged.send_envelope(BOB, "chat", {"text": "x" * 500}, id="long")
    sizes = {one["envelope"]["omitted_bytes"] for one in logged.about("long")}
    assert len(sizes) == 1
    assert sizes.pop() > 500


def test_long_envelopes_that_wait_for_the_disk_are_bounded(config: SpaceConfig, tmp_path: Path) -> None:
    logged = Logged(config, tmp_path, LogWriter(max_queued_bytes=4_000))
    logged.send_envelope(BOB, "participant/clear", {"reason": "x" * 5_000}, id="refused")
    logged.send_envelope(BOB, "participant/clear", id="short")
    assert not logged.about("refused")
    assert [one["event"] for one in logged.about("short")] == ["received", "rejected"]
    assert '{"event":"dropped","lines":1}' in logged.lines()


def test_a_disabled_log_creates_no_file(config: SpaceConfig, tmp_path: Path) -> None:
    off = {"enabled": False}
    logged = Logged(config, tmp_path / "a", envelope_history=off)
    logged.send_envelope(BOB, "chat", {"text": "x"})
    assert logged.lines() == []
    assert logged.lines(CAPABILITY_DECISIONS)
    writer = LogWriter()
    assert not AuditLog(tmp_path / "b", "demo", GatewayLogging(**off), writer).is_on
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (True, True, False)),
        ({"GATEWAY_LOGGING": "off"}, (False, True, False)),
        ({"ENVELOPE_HISTORY": "0", "CAPABILITY_DECISIONS": "YES"}, (True, False, True)),
        ({"GATEWAY_LOGGING": "perhaps"}, (True, True, False)),
    ],
)
def test_environment_variables_override_the_configuration(environ: dict[str, str], expected: tuple[bool, ...]) -> None:
    config = parse_space("space: {id: a}\ngateway_logging: {capability_decisions: {enabled: false}}").gateway_logging
    options = logging_options(config, environ)
    assert (options.enabled, options.envelope_history.enabled, options.capability_decisions.enabled) == expected
