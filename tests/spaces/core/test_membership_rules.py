"""Grants, invitations, removals, pauses, shutdowns and proposals, as members see them."""

import json
from typing import Any

import pytest
from mew_protocol import errors
from mew_protocol.capability import BASELINE, MAX_PATTERNS
from mew_spaces.config.loading import SpaceConfig, parse_space

from tests.support.operations import calls
from tests.support.space_driver import SpaceDriver

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob:
    capabilities:
      - {kind: chat}
      - {kind: "capability/*"}
      - {kind: "space/*"}
      - {kind: mcp/request, payload: {method: "tools/*"}}
  coder: {name: The Coder, command: mew, capabilities: [{kind: chat}]}
"""
CALL = {"kind": "mcp/request", "payload": {"method": "tools/call"}}


@pytest.fixture
def config() -> SpaceConfig:
    return parse_space(SPACE)


@pytest.fixture
def driver(config: SpaceConfig) -> SpaceDriver:
    driver = SpaceDriver(config)
    for number, name in enumerate(("ada", "bob", "coder"), start=1):
        driver.join(number, name)
    for number in (1, 2, 3):
        driver.take(number)
    return driver


def grant(driver: SpaceDriver, *capabilities: Any, by: int = 1, to: str = "coder", **more: Any) -> Any:
    name = {1: "ada", 2: "bob", 3: "coder"}[by]
    payload = {"recipient": to, "capabilities": list(capabilities), **more}
    return driver.send_envelope(by, name, "capability/grant", payload, id="the-grant", to=[to])


def test_a_grant_takes_effect_before_others_learn_of_it(
    driver: SpaceDriver,
) -> None:
    assert driver.send_envelope(3, "coder", "mcp/request", {"method": "tools/call"}).refused is not None
    driver.take(3)
    assert grant(driver, CALL, {"kind": "chat/acknowledge"}).accepted is not None
    welcome, reported = driver.inbox[3]  # type: ignore[index]
    assert welcome.kind == "system/welcome"  # type: ignore[union-attr]
    assert welcome.body["you"] == {  # type: ignore[union-attr]
        "id": "coder",
        "capabilities": [{"kind": "chat"}, CALL, {"kind": "chat/acknowledge"}, BASELINE],
    }
    assert "active_streams" in welcome.body  # type: ignore[union-attr]
    assert reported.kind == "capability/grant"  # type: ignore[union-attr]
    assert driver.take(1) == driver.take(2) == ["capability/grant"]
    said = driver.send_envelope(3, "coder", "mcp/request", {"method": "tools/call"})
    assert said.decision is not None
    assert said.decision.source == "dynamic"


def test_no_more_participants_can_be_invited_than_the_limit() -> None:
    driver = SpaceDriver(parse_space(SPACE + "limits: {members: 2}\n"))
    driver.join(1, "ada")
    receipts = [
        driver.send_envelope(1, "ada", "space/invite", {"participant_id": name}) for name in ("eve", "fay", "gus")
    ]
    assert [one.refused.error if one.refused else None for one in receipts] == [None, None, errors.LIMIT_EXCEEDED]


def test_grants_accumulate_up_to_the_limit(driver: SpaceDriver) -> None:
    grant(driver, CALL)
    grant(driver, {"kind": "chat/*"}, {"kind": "reasoning/*"}, *({"kind": f"x/{n}"} for n in range(MAX_PATTERNS - 3)))
    for kind in ("chat/cancel", "reasoning/start", "mcp/request"):
        assert driver.send_envelope(3, "coder", kind, {"method": "tools/call"}).accepted is not None
    refused = grant(driver, {"kind": "stream/*"}).refused
    assert refused is not None
    assert refused.error == errors.LIMIT_EXCEEDED


TOO_LARGE = [
    ([{"kind": f"x/{number}"} for number in range(257)], ": has 257 patterns; the limit is 256"),
    ([{"kind": "chat"}, {"kind": "x" * 1_001}], ".1: a text in this pattern has 1,001 characters; the limit is 1,000"),
    (
        [{"kind": "chat"}, {"kind": "chat", "payload": {"t": ["x" * 900] * 5}}],
        ".1: this pattern has 4,548 bytes as JSON; the limit is 4,096",
    ),
]


@pytest.mark.parametrize(("patterns", "problem"), TOO_LARGE)
def test_grants_and_invitations_refuse_too_many_or_too_long_patterns(
    driver: SpaceDriver, patterns: list[Any], problem: str
) -> None:
    granted = grant(driver, *patterns)
    invite = {"participant_id": "eve", "initial_capabilities": patterns}
    invited = driver.send_envelope(1, "ada", "space/invite", invite)
    for kind, field, receipt in (
        ("capability/grant", "capabilities", granted),
        ("space/invite", "initial_capabilities", invited),
    ):
        assert receipt.refused is not None
        assert receipt.refused.error == errors.LIMIT_EXCEEDED
        assert receipt.refused.message == f"{kind}: payload.{field}{problem}"


@pytest.mark.parametrize(
    ("capability", "verdict"),
    [
        ({"kind": "chat"}, True),
        (CALL, True),
        ({"kind": "mcp/request", "payload": {"method": "tools/*"}}, True),
        ({"kind": "mcp/response"}, True),
        ({"kind": "mcp/request"}, False),
        ({"kind": "*"}, False),
        ({"kind": "stream/request"}, False),
    ],
)
def test_a_participant_grants_only_its_own_rights(driver: SpaceDriver, capability: Any, verdict: bool) -> None:
    receipt = grant(driver, {"kind": "chat"}, capability, by=2)
    if verdict:
        assert receipt.accepted is not None
        return
    assert receipt.refused is not None
    assert receipt.refused.error == errors.GRANT_EXCEEDS_OWN
    assert capability["kind"] in receipt.refused.message
    assert driver.take(2) == ["system/error grant_exceeds_own"]
    assert driver.take(1) == driver.take(3) == []
    assert driver.notes == []


def test_a_granted_capability_can_be_passed_on(driver: SpaceDriver) -> None:
    grant(driver, {"kind": "capability/grant"}, {"kind": "stream/*"})
    assert grant(driver, {"kind": "stream/request"}, by=3, to="bob").accepted is not None
    assert grant(driver, {"kind": "space/kick"}, by=3, to="bob").accepted is None


def test_no_grant_or_revocation_makes_many_calls() -> None:
    hostile = [{"kind": f"a*b{number}*c", "payload": {"x": f"*q*{number}*"}} for number in range(250)]
    held = json.dumps([{"kind": "capability/*"}, {"kind": "space/*"}, *hostile])
    driver = SpaceDriver(
        parse_space(f"space: {{id: demo}}\nparticipants: {{ada: {{capabilities: {held}}}, bob: {{}}}}")
    )
    driver.join(1, "ada")
    for number in range(0, 250, 25):
        few = {"recipient": "bob", "capabilities": hostile[number : number + 25]}
        driver.send_envelope(None, "ada", "capability/grant", few)
    others = [{"kind": f"a*b{number}*", "payload": {"x": f"*q*{number}"}} for number in range(250)]
    for kind, payload in (
        ("capability/grant", {"recipient": "bob", "capabilities": others}),
        ("capability/grant", {"recipient": "bob", "capabilities": hostile}),
        ("space/invite", {"participant_id": "eve", "initial_capabilities": hostile}),
        ("capability/revoke", {"recipient": "bob", "capabilities": others}),
    ):

        def send(kind: str = kind, payload: dict[str, Any] = payload) -> None:
            assert driver.send_envelope(1, "ada", kind, payload).refused is not None

        assert calls(send) < 100_000


def test_check_grants_false_allows_any_grant(config: SpaceConfig) -> None:
    options = config.capabilities.model_copy(update={"check_grants": False})
    driver = SpaceDriver(config.model_copy(update={"capabilities": options}))
    driver.join(2, "bob")
    assert grant(driver, {"kind": "*"}, by=2).accepted is not None


@pytest.mark.parametrize(
    ("kind", "payload", "error", "words"),
    [
        ("capability/grant", {}, errors.INVALID_PAYLOAD, "payload.recipient"),
        ("capability/grant", {"recipient": "coder", "capabilities": []}, errors.INVALID_PAYLOAD, "capabilities"),
        ("capability/grant", {"recipient": "coder", "capabilities": [{}]}, errors.INVALID_PAYLOAD, "capabilities.0"),
        (
            "capability/grant",
            {"recipient": "coder", "capabilities": [{"kind": "chat"}, {"kind": 5}]},
            errors.INVALID_PAYLOAD,
            "payload.capabilities.1",
        ),
        (
            "capability/grant",
            {"recipient": "ghost", "capabilities": [{"kind": "chat"}]},
            errors.PARTICIPANT_NOT_FOUND,
            "'ghost'",
        ),
        ("capability/revoke", {"recipient": "coder"}, errors.INVALID_PAYLOAD, "grant_id"),
        ("capability/revoke", {"recipient": "ghost", "grant_id": "g"}, errors.PARTICIPANT_NOT_FOUND, "'ghost'"),
        ("space/invite", {}, errors.INVALID_REQUEST, "participant_id"),
        ("space/invite", {"participant_id": "a/b"}, errors.INVALID_REQUEST, "invalid characters"),
        (
            "space/invite",
            {"participant_id": "Coder"},
            errors.ALREADY_EXISTS,
            "'coder' is a participant of this space, and 'Coder' looks like it",
        ),
        ("space/invite", {"participant_id": "\u0441oder"}, errors.ALREADY_EXISTS, "looks like it"),
        ("space/invite", {"participant_id": "m\u0430llory"}, errors.INVALID_REQUEST, "use ASCII letters"),
        ("space/invite", {"participant_id": "ada: yes"}, errors.INVALID_REQUEST, "separate names and texts"),
        ("space/invite", {"participant_id": "a\\b"}, errors.INVALID_REQUEST, "invalid characters"),
        ("space/invite", {"participant_id": ".."}, errors.INVALID_REQUEST, "invalid characters"),
        ("space/invite", {"participant_id": "system:x"}, errors.INVALID_REQUEST, "reserved"),
        ("space/invite", {"participant_id": "x" * 200}, errors.INVALID_REQUEST, "at most"),
        (
            "space/invite",
            {"participant_id": "eve", "initial_capabilities": [{"no": "kind"}]},
            errors.INVALID_REQUEST,
            "initial_capabilities.0",
        ),
        ("space/kick", {}, errors.INVALID_PAYLOAD, "participant_id"),
        ("space/kick", {"participant_id": "ghost"}, errors.PARTICIPANT_NOT_FOUND, "'ghost'"),
        ("space/invite-ack", {"status": "created"}, errors.RESERVED_KIND, "reserved"),
        ("stream/open", {"stream_id": "stream-1", "owner": "ada"}, errors.RESERVED_KIND, "reserved"),
        ("stream/write-granted", {"stream_id": "stream-1"}, errors.RESERVED_KIND, "reserved"),
        ("stream/write-revoked", {"stream_id": "stream-1"}, errors.RESERVED_KIND, "reserved"),
        ("stream/ownership-transferred", {"stream_id": "stream-1"}, errors.RESERVED_KIND, "reserved"),
    ],
)
def test_an_invalid_request_is_refused_to_its_sender_alone(
    driver: SpaceDriver, kind: str, payload: Any, error: str, words: str
) -> None:
    refused = driver.send_envelope(1, "ada", kind, payload).refused
    assert refused is not None
    assert refused.error == error
    assert words in (refused.message or "")
    assert driver.take(1) == [f"system/error {error}"]
    assert driver.take(2) == driver.take(3) == []


@pytest.mark.parametrize(
    "what",
    [{"grant_id": "the-grant"}, {"grant_id": "mine"}, {"capabilities": [CALL]}],
    ids=["envelope", "id", "pattern"],
)
def test_a_revocation_takes_effect_at_once(driver: SpaceDriver, what: Any) -> None:
    grant(driver, CALL, grant_id="mine")
    driver.take(3)
    assert driver.send_envelope(1, "ada", "capability/revoke", {"recipient": "coder", **what}).accepted is not None
    assert driver.take(3) == ["system/welcome", "capability/revoke"]
    assert driver.send_envelope(3, "coder", "mcp/request", {"method": "tools/call"}).refused is not None


def test_configured_capabilities_cannot_be_revoked(driver: SpaceDriver) -> None:
    driver.send_envelope(1, "ada", "capability/revoke", {"recipient": "coder", "capabilities": [{"kind": "chat"}]})
    assert driver.take(3) == ["capability/revoke"]
    assert driver.send_envelope(3, "coder", "chat", {"text": "still"}).accepted is not None


def test_grants_outlast_a_short_absence_only(driver: SpaceDriver) -> None:
    grant(driver, CALL)
    driver.leave(3, "coder")
    driver.wait(3)
    driver.join(4, "coder")
    assert CALL in driver.last(4).body["you"]["capabilities"]
    driver.leave(4, "coder")
    driver.wait(5)
    driver.join(5, "coder")
    assert CALL not in driver.last(5).body["you"]["capabilities"]


def test_a_recipient_may_be_absent_and_named_by_display_name(driver: SpaceDriver) -> None:
    driver.leave(3, "coder")
    assert grant(driver, CALL, to="The Coder").accepted is not None
    assert driver.send_envelope(None, "coder", "mcp/request", {"method": "tools/call"}).accepted is not None


def test_every_change_of_permissions_is_audited(driver: SpaceDriver) -> None:
    grant(driver, CALL, reason="trust")
    driver.send_envelope(1, "ada", "capability/revoke", {"recipient": "coder", "grant_id": "the-grant"})
    driver.send_envelope(1, "ada", "capability/revoke", {"recipient": "coder", "grant_id": "the-grant"})
    driver.send_envelope(1, "ada", "space/invite", {"participant_id": "eve", "initial_capabilities": [CALL]})
    driver.send_envelope(1, "ada", "space/kick", {"participant_id": "eve", "reason": "enough"})
    assert [
        (one.event, one.participant, one.envelope.sender, one.capabilities, one.reason) for one in driver.notes
    ] == [
        ("capability_grant", "coder", "ada", (CALL,), "trust"),
        ("capability_revoke", "coder", "ada", (CALL,), None),
        ("space_invite", "eve", "ada", (CALL,), None),
        ("space_kick", "eve", "ada", (), "enough"),
    ]


def test_only_the_inviter_gets_the_token(driver: SpaceDriver) -> None:
    driver.space.connection_url = "ws://here/"
    payload = {"participant_id": "eve", "initial_capabilities": [CALL], "reason": "help"}
    receipt = driver.send_envelope(2, "bob", "space/invite", payload, id="mine")
    token = driver.tokens["eve"]
    answer = {"status": "created", "participant_id": "eve", "token": token, "connection_url": "ws://here/"}
    assert receipt.answer == answer
    ack = driver.last(2)
    assert (ack.kind, ack.sender, ack.to, ack.correlation_id) == (
        "space/invite-ack",
        "system:gateway",
        ("bob",),
        ("mine",),
    )
    assert ack.body == answer
    assert driver.take(2) == ["space/invite-ack"]
    reported = driver.last(1)
    assert reported.body == {
        "event": "invited",
        "participant": {"id": "eve", "capabilities": [CALL, BASELINE]},
        "invited_by": "bob",
        "reason": "help",
    }
    assert driver.take(1) == driver.take(3) == ["system/presence invited"]
    assert token not in str([envelope.as_dict() for envelope in driver.history])


def test_an_invited_participant_keeps_its_capabilities(driver: SpaceDriver) -> None:
    driver.send_envelope(1, "ada", "space/invite", {"participant_id": "eve", "initial_capabilities": [CALL]})
    for number in (7, 8):
        driver.join(number, "eve")
        assert driver.last(number).body["you"]["capabilities"] == [CALL, BASELINE]
        driver.leave(number, "eve")
        driver.wait(60)


@pytest.mark.parametrize("name", ["ZOË", "Zoe\u0308"])
def test_an_id_that_shares_a_file_name_cannot_be_invited(driver: SpaceDriver, name: str) -> None:
    driver.send_envelope(1, "ada", "space/invite", {"participant_id": "Zoë"})
    tokens = dict(driver.tokens)
    receipt = driver.send_envelope(1, "ada", "space/invite", {"participant_id": name})
    assert (receipt.refused and receipt.refused.error, driver.tokens) == (errors.ALREADY_EXISTS, tokens)


@pytest.mark.parametrize("name", ["coder", "eve", "The Coder"])
def test_a_participant_cannot_be_invited_twice(driver: SpaceDriver, name: str) -> None:
    driver.send_envelope(1, "ada", "space/invite", {"participant_id": "eve"})
    tokens = dict(driver.tokens)
    driver.take(1)
    receipt = driver.send_envelope(1, "ada", "space/invite", {"participant_id": name})
    assert receipt.refused is not None
    assert receipt.refused.error == errors.ALREADY_EXISTS
    assert receipt.answer == {"status": "already_exists", "participant_id": name}
    assert (driver.last(1).kind, driver.last(1).body["status"]) == ("space/invite-ack", "already_exists")
    assert driver.tokens == tokens


def test_an_inviter_gives_only_its_own_rights(driver: SpaceDriver, config: SpaceConfig) -> None:
    payload = {"participant_id": "eve", "initial_capabilities": [{"kind": "stream/*"}]}
    refused = driver.send_envelope(2, "bob", "space/invite", payload).refused
    assert refused is not None
    assert refused.error == errors.GRANT_EXCEEDS_OWN
    options = config.capabilities.model_copy(update={"check_invites": False})
    lax = SpaceDriver(config.model_copy(update={"capabilities": options}))
    lax.join(2, "bob")
    assert lax.send_envelope(2, "bob", "space/invite", payload).accepted is not None


INVITER = """
space: {id: demo}
participants:
  ada:
    capabilities: [{kind: chat}, {kind: space/invite}, {kind: capability/grant}, {kind: capability/revoke}]
  bob: {capabilities: [{kind: "*"}]}
"""


@pytest.mark.parametrize(
    "above",
    [
        {"kind": "space/kick"},
        {"kind": ["space/invite", "space/kick"]},
        {"kind": "space/*"},
        {"kind": "space/k?ck"},
        {"kind": "/space.kick/"},
        {"kind": "!chat"},
        {"kind": "*"},
        {"kind": "**"},
        {"kind": "space/kick", "to": "bob"},
        {"kind": "space/kick", "payload": {"participant_id": "bob"}},
    ],
    ids=str,
)
def test_only_a_participant_with_kick_gives_the_right_to_kick(above: dict[str, Any]) -> None:
    driver = SpaceDriver(parse_space(INVITER))
    driver.join(1, "ada")
    driver.join(2, "bob")
    accomplice = {"participant_id": "eve", "initial_capabilities": [{"kind": "chat"}, {"kind": "space/invite"}]}
    assert driver.send_envelope(1, "ada", "space/invite", accomplice).accepted is not None
    driver.join(3, "eve")
    for number, name in ((1, "ada"), (3, "eve")):
        invited = {"participant_id": "mallory", "initial_capabilities": [above]}
        driver.send_envelope(number, name, "space/invite", invited)
        for recipient in ("ada", "eve"):
            driver.send_envelope(number, name, "capability/grant", {"recipient": recipient, "capabilities": [above]})
    for name in ("ada", "eve", "mallory"):
        assert driver.send_envelope(None, name, "space/kick", {"participant_id": "bob"}, to=["bob"]).accepted is None
    assert driver.space.membership.resolve("mallory") is None
    assert driver.space.membership.resolve("bob") == "bob"


def test_a_kick_removes_a_participant_with_its_streams(driver: SpaceDriver) -> None:
    grant(driver, {"kind": "stream/*"})
    driver.send_envelope(3, "coder", "stream/request", {"direction": "upload"})
    driver.take(1)
    driver.take(3)
    driver.send_envelope(1, "ada", "space/kick", {"participant_id": "coder", "reason": "loud"})
    assert driver.take(3) == ["space/kick"]
    assert driver.closed == {3: errors.CLOSE_REMOVED}
    assert driver.take(1) == ["space/kick", "system/presence leave", "stream/close stream-1"]
    assert "coder" not in driver.space.members
    assert list(driver.space.names) == ["ada", "bob"]
    driver.leave(3, "coder")
    assert driver.take(1) == []
    assert grant(driver, CALL).refused is not None


def test_a_kicked_participant_can_be_invited_back(driver: SpaceDriver) -> None:
    driver.leave(3, "coder")
    driver.take(1)
    driver.send_envelope(1, "ada", "space/kick", {"participant_id": "coder"})
    assert driver.take(1) == ["space/kick"]
    driver.send_envelope(1, "ada", "space/invite", {"participant_id": "coder", "initial_capabilities": [CALL]})
    driver.join(9, "coder")
    assert driver.last(9).body["you"]["capabilities"] == [CALL, BASELINE]


def test_a_revocation_needs_the_capability(driver: SpaceDriver) -> None:
    grant(driver, CALL)
    driver.send_envelope(3, "coder", "capability/revoke", {"recipient": "coder", "grant_id": "the-grant"})
    assert driver.send_envelope(3, "coder", "mcp/request", {"method": "tools/call"}).accepted is not None


def test_membership_survives_a_restart(driver: SpaceDriver, config: SpaceConfig) -> None:
    grant(driver, CALL)
    driver.send_envelope(1, "ada", "space/invite", {"participant_id": "eve", "initial_capabilities": [CALL]})
    driver.send_envelope(1, "ada", "space/kick", {"participant_id": "bob"})
    driver.send_envelope(1, "ada", "participant/pause", to=["coder"])
    restarted = SpaceDriver(config, driver.stored)
    restarted.join(3, "coder")
    assert CALL in restarted.inbox[3][0].body["you"]["capabilities"]  # type: ignore[index,union-attr]
    assert restarted.take(3) == ["system/welcome", "participant/pause"]
    assert list(restarted.space.names) == ["coder", "ada", "eve"]


def paused(driver: SpaceDriver, *names: str) -> list[str]:
    """Return which of these participants may not send a chat."""
    return [name for name in names if driver.send_envelope(None, name, "chat", {"text": "x"}).refused is not None]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("participant/pause", {"timeout_seconds": -1}),
        ("participant/pause", {"timeout_seconds": "soon"}),
        ("participant/shutdown", {"reason": 5}),
    ],
)
def test_an_invalid_control_is_refused_and_silences_no_member(
    driver: SpaceDriver, kind: str, payload: dict[str, Any]
) -> None:
    refused = driver.send_envelope(1, "ada", kind, payload, to=["coder"]).refused
    assert refused is not None
    assert refused.error == "invalid_payload"
    assert paused(driver, "coder") == []


def test_a_pause_affects_only_other_participants_that_it_names(driver: SpaceDriver) -> None:
    driver.send_envelope(1, "ada", "participant/pause")
    driver.send_envelope(1, "ada", "participant/pause", to=["ada", "ghost"])
    assert paused(driver, "ada", "bob", "coder") == []
    assert driver.changes == []


def test_a_participant_cannot_resume_itself(driver: SpaceDriver) -> None:
    grant(driver, {"kind": "participant/*"})
    driver.send_envelope(1, "ada", "participant/pause", to=["coder", "bob"])
    driver.send_envelope(3, "coder", "participant/resume", to=["coder"])
    driver.send_envelope(3, "coder", "participant/resume")
    assert paused(driver, "bob", "coder") == ["coder"]
    driver.send_envelope(1, "ada", "participant/resume")
    assert paused(driver, "bob", "coder") == []


def test_a_space_may_leave_controls_to_its_participants(config: SpaceConfig) -> None:
    options = config.control.model_copy(update={"enforce_pause": False, "enforce_shutdown": False})
    driver = SpaceDriver(config.model_copy(update={"control": options}))
    driver.join(1, "ada")
    for kind in ("participant/pause", "participant/shutdown", "participant/clear"):
        driver.send_envelope(1, "ada", kind, to=["coder"])
    assert paused(driver, "coder") == []


@pytest.mark.parametrize(
    ("kind", "to", "payload", "verdict"),
    [
        ("mcp/request", ["coder"], {"method": "tools/call", "params": {"name": "add", "arguments": {"a": 9}}}, True),
        ("mcp/request", ["bob"], {"method": "tools/call", "params": {"name": "add"}}, False),
        ("mcp/request", ["coder", "bob"], {"method": "tools/call", "params": {"name": "add"}}, False),
        ("mcp/request", [], {"method": "tools/call", "params": {"name": "add"}}, False),
        ("mcp/request", ["bob"], {"method": "tools/call", "params": {"name": "look"}}, True),
        ("mcp/response", ["ada"], {"result": "FORGED 999"}, False),
    ],
)
def test_only_proposed_peers_are_asked_and_answer(
    driver: SpaceDriver, kind: str, to: list[str], payload: Any, verdict: bool
) -> None:
    call = {"method": "tools/call", "params": {"name": "add"}}
    driver.send_envelope(1, "ada", "mcp/proposal", call, id="p", to=["coder"])
    receipt = driver.send_envelope(2, "bob", kind, payload, to=to, correlation_id=["p"])
    assert (receipt.accepted is not None) is verdict
    if not verdict:
        assert receipt.refused is not None
        assert receipt.refused.error == errors.UNAUTHORIZED
    assert (
        driver.send_envelope(3, "coder", "mcp/response", {"result": 5}, to=["ada"], correlation_id=["p"]).accepted
        is not None
    )
