"""One space: joining, leaving, sending and being refused. No sockets here."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mew_protocol import errors
from mew_protocol.capability import BASELINE
from mew_protocol.envelope import wire_timestamp
from mew_protocol.ids import ParticipantId
from mew_protocol.payloads.all_kinds import PAYLOADS
from mew_protocol.payloads.participant import Status
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.core.events import ConnectionId

from tests.support.space_driver import START, SpaceDriver

STATUS = {"messages_in_context": 3, "tokens": 10, "max_tokens": 100}


@pytest.fixture
def driver(config: SpaceConfig) -> SpaceDriver:
    return SpaceDriver(config)


def test_a_joiner_gets_a_welcome_and_the_others_get_a_presence(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    assert driver.last(1).as_dict() == {
        "protocol": "mew/v0.4",
        "id": "id-2",
        "ts": "2026-01-01T00:00:00.000Z",
        "from": "system:gateway",
        "to": ["ada"],
        "kind": "system/welcome",
        "payload": {
            "you": {"id": "ada", "capabilities": [{"kind": "*"}, {"kind": "**"}, BASELINE]},
            "participants": [],
            "active_streams": [],
            "board": [],
        },
    }
    driver.join(2, "bob")
    assert driver.last(2).body["participants"] == [
        {"id": "ada", "capabilities": [{"kind": "*"}, {"kind": "**"}, BASELINE]}
    ]
    assert driver.last(1).body == {
        "event": "join",
        "participant": {"id": "bob", "capabilities": [{"kind": "chat"}, BASELINE]},
    }
    assert driver.take(2) == ["system/welcome"]


def test_every_member_receives_every_envelope_with_any_to(driver: SpaceDriver) -> None:
    for number, name in enumerate(("ada", "bob", "coder"), start=1):
        driver.join(number, name)
        driver.take(number)
    driver.inbox.clear()
    driver.inbox.update({ConnectionId(number): [] for number in (1, 2, 3)})
    assert driver.send_envelope(2, "bob", "chat", {"text": "hi"}, to=["ada"]).accepted is not None
    assert [driver.take(number) for number in (1, 2, 3)] == [["chat hi"]] * 3


def test_a_participant_leaves_with_its_last_connection(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.join(2, "bob")
    driver.take(1)
    driver.leave(2, "bob")
    assert driver.last(1).body == {"event": "leave", "participant": {"id": "bob"}}
    driver.leave(2, "bob")
    assert driver.take(1) == ["system/presence leave"]


def test_a_person_is_present_from_the_first_connection_to_the_last(driver: SpaceDriver) -> None:
    driver.join(1, "bob")
    driver.join(2, "ada")
    driver.join(3, "ada")
    assert driver.take(1) == ["system/welcome", "system/presence join"]
    assert (driver.take(2), driver.take(3)) == (["system/welcome"], ["system/welcome"])
    driver.send_envelope(1, "bob", "chat", {"text": "both"})
    assert (driver.take(2), driver.take(3)) == (["chat both"], ["chat both"])
    driver.leave(2, "ada")
    assert driver.take(1) == ["chat both"]
    driver.leave(3, "ada")
    assert driver.take(1) == ["system/presence leave"]


def test_the_newest_connection_of_an_agent_supersedes_the_older_one(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.join(2, "coder")
    driver.join(3, "coder")
    assert driver.take(2) == ["system/welcome", "system/error superseded"]
    assert driver.take(3) == ["system/welcome"]
    assert driver.take(1) == ["system/welcome", "system/presence join", "system/presence join"]
    refused = driver.send_envelope(2, "coder", "chat", {"text": "still here"}).refused
    assert refused is not None
    assert refused.error == errors.SUPERSEDED
    driver.write(2, "coder", "stream-1")
    assert driver.take(2) == ["system/error superseded", "system/error superseded"]
    driver.leave(2, "coder")
    driver.send_envelope(3, "coder", "chat", {"text": "me"})
    assert (driver.take(1), driver.take(3)) == (["chat me"], ["chat me"])
    assert driver.closed == {}


def test_joining_again_repeats_the_welcome_without_a_presence(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.join(2, "coder")
    driver.join(2, "coder")
    assert driver.take(2) == ["system/welcome", "system/welcome"]
    assert driver.take(1) == ["system/welcome", "system/presence join"]


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        ({"kind": None}, errors.INVALID_ENVELOPE, "'kind' is missing"),
        ({"kind": "chat", "from": "ada", "payload": {"text": "x"}}, errors.IDENTITY_MISMATCH, "'from' is 'ada'"),
        ({"kind": "chat"}, errors.INVALID_PAYLOAD, "payload.text"),
        ({"kind": "chat", "payload": {"text": ""}}, errors.INVALID_PAYLOAD, "payload.text"),
        ({"kind": "chat", "payload": {"text": 5}}, errors.INVALID_PAYLOAD, "payload.text"),
        ({"kind": "mcp/proposal", "payload": {"params": {}}}, errors.INVALID_PAYLOAD, "payload.method"),
        ({"kind": "mcp/request", "payload": {}}, errors.INVALID_PAYLOAD, "payload.method"),
        ({"kind": "system/register"}, errors.INVALID_REQUEST, "system/register is reserved for the gateway"),
        ({"kind": "system/welcome"}, errors.RESERVED_KIND, "system/welcome is reserved for the gateway"),
        ({"kind": "system/join"}, errors.RESERVED_KIND, "reserved"),
        ({"kind": "system/anything"}, errors.RESERVED_KIND, "reserved"),
        ({"kind": "participant/compact", "to": ["ada"]}, errors.CAPABILITY_VIOLATION, "participant/compact"),
    ],
)
def test_a_refusal_goes_to_the_sender_alone(
    driver: SpaceDriver, message: dict[str, Any], error: str, words: str
) -> None:
    driver.join(1, "ada")
    driver.join(2, "bob")
    driver.take(1)
    receipt = driver.send_envelope(2, "bob", message.pop("kind"), message.pop("payload", None), id="mine", **message)
    assert receipt.accepted is None
    refusal = driver.last(2)
    assert (refusal.kind, refusal.sender) == ("system/error", "system:gateway")
    assert (refusal.to, refusal.correlation_id) == (("bob",), ("mine",))
    assert refusal.body["error"] == error
    assert words in refusal.body["message"]
    assert driver.take(1) == []


def test_a_capability_violation_lists_the_senders_capabilities(driver: SpaceDriver) -> None:
    driver.join(2, "bob")
    driver.send_envelope(2, "bob", "mcp/proposal", {"method": "x"})
    body = driver.last(2).body
    assert body["attempted_kind"] == "mcp/proposal"
    assert body["your_capabilities"] == [{"kind": "chat"}, BASELINE]
    assert driver.last(2).correlation_id is None


def test_to_in_a_capability_is_enforced_unless_the_space_ignores_it(driver: SpaceDriver, config: SpaceConfig) -> None:
    driver.join(3, "coder")
    request = {"method": "tools/list"}
    assert driver.send_envelope(3, "coder", "mcp/request", request, to=["files"]).accepted is not None
    assert driver.send_envelope(3, "coder", "mcp/request", request).accepted is None
    assert driver.send_envelope(3, "coder", "mcp/request", request, to=["files", "ada"]).accepted is None
    lenient = config.model_copy(update={"capabilities": config.capabilities.model_copy(update={"ignore_to": True})})
    other = SpaceDriver(lenient)
    other.join(3, "coder")
    assert other.send_envelope(3, "coder", "mcp/request", request).accepted is not None


def test_any_participant_may_answer_requests(driver: SpaceDriver) -> None:
    driver.join(2, "bob")
    assert driver.send_envelope(2, "bob", "mcp/response", {"result": {}}, correlation_id=["x"]).accepted is not None


def test_a_heartbeat_is_accepted_and_not_delivered(driver: SpaceDriver) -> None:
    driver.join(2, "bob")
    driver.take(2)
    receipt = driver.send_envelope(2, "bob", "system/heartbeat")
    assert receipt.accepted is not None
    assert receipt.effects == ()


def test_an_http_sender_need_not_be_connected(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.take(1)
    assert driver.send_envelope(None, "bob", "chat", {"text": "from afar"}).accepted is not None
    assert driver.take(1) == ["chat from afar"]
    refused = driver.send_envelope(None, "bob", "participant/clear")
    assert refused.refused is not None
    assert refused.effects == ()
    driver.join(2, "bob")
    driver.take(2)
    driver.send_envelope(None, "bob", "participant/clear")
    assert driver.take(2) == ["system/error capability_violation"]


def test_a_board_has_an_entry_for_every_participant(driver: SpaceDriver) -> None:
    driver.join(3, "coder")
    board = driver.space.read_board(now=driver.now)
    assert (board.space, board.name, board.at) == ("demo", "Demo", "2026-01-01T00:00:00.000Z")
    assert [(entry.id, entry.connected) for entry in board.participants] == [
        ("coder", True),
        ("ada", False),
        ("bob", False),
        ("files", False),
    ]


def test_a_status_stays_on_the_board_when_its_sender_leaves(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.join(3, "coder")
    driver.send_envelope(3, "coder", "participant/status", STATUS)
    driver.leave(3, "coder")
    driver.wait(2.5)
    entry = next(one for one in driver.space.read_board(now=driver.now).participants if one.id == "coder")
    assert entry.status is not None
    assert (entry.status.tokens, entry.connected, entry.age_seconds) == (10, False, 2.5)
    driver.join(4, "bob")
    assert driver.last(4).body["board"] == [
        {
            "id": "coder",
            "connected": False,
            "status": STATUS,
            "status_id": entry.status_id,
            "received_at": "2026-01-01T00:00:00.000Z",
            "age_seconds": 2.5,
            "figure_at": "2026-01-01T00:00:00.000Z",
        }
    ]


def test_a_status_with_impossible_figures_is_refused(driver: SpaceDriver) -> None:
    driver.join(3, "coder")
    driver.send_envelope(3, "coder", "participant/status", STATUS)
    impossible = {**STATUS, "context": {"basis": "reported", "prompt_tokens": 11}}
    refused = driver.send_envelope(3, "coder", "participant/status", impossible).refused
    assert refused is not None
    assert (refused.error, "below" in str(refused.message)) == ("invalid_payload", True)
    assert driver.send_envelope(3, "coder", "participant/status", {"status": "thinking"}).accepted is not None
    assert driver.space.read_board(now=driver.now).participants[0].status == Status.model_validate(STATUS)


def test_figures_older_than_reported_ones_are_refused(driver: SpaceDriver) -> None:
    def is_accepted(tokens: int, *, minutes: int) -> bool:
        measured_at = wire_timestamp(START + timedelta(minutes=minutes))
        report = {"basis": "agent_reported", "measured_at": measured_at}
        refused = driver.send_envelope(
            None, "coder", "participant/status", {**STATUS, "tokens": tokens, "context": report}
        )
        assert refused.refused is None or "older than the figures" in str(refused.refused.message)
        return refused.refused is None

    driver.join(3, "coder")
    driver.wait(600)
    assert is_accepted(50, minutes=5)
    assert is_accepted(20, minutes=5)  # smaller: it has dropped a part
    cleared = {"messages_in_context": 0, "context": {"basis": "unknown", "reason": "cleared"}}
    driver.send_envelope(3, "coder", "participant/status", cleared)
    driver.take(3)
    assert not is_accepted(40, minutes=4)
    assert driver.take(3) == ["system/error invalid_payload"]
    assert driver.space.read_board(now=driver.now).participants[0].status == Status.model_validate(cleared)
    assert is_accepted(30, minutes=90)  # its clock is ahead ...
    assert is_accepted(31, minutes=10)  # ... and set right
    driver.perform(driver.space.connections.shift_deadlines(timedelta(minutes=-9)))  # the machine's clock is set back
    driver.now -= timedelta(minutes=9)
    assert is_accepted(32, minutes=1)
    driver.join(4, "coder")  # it restarted, and has another clock
    assert is_accepted(33, minutes=-60)


def test_a_full_space_rejects_further_connections() -> None:
    config = parse_space("space: {id: a}\nparticipants: {x: {}, y: {}}\nlimits: {members: 1, sockets_per_member: 2}")
    driver = SpaceDriver(config)
    for number in (1, 2, 3):
        driver.join(number, "x")
    driver.join(4, "y")
    assert driver.take(3) == ["system/error limit_exceeded"]
    assert driver.take(4) == ["system/error limit_exceeded"]
    assert driver.closed == {3: errors.CLOSE_LIMIT, 4: errors.CLOSE_LIMIT}
    assert list(driver.admitted) == [1, 2]
    driver.leave(1, "x")
    driver.join(5, "x")
    assert list(driver.admitted) == [2, 5]


def test_an_owner_that_stays_away_loses_its_streams(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.join(3, "coder")
    driver.send_envelope(3, "coder", "stream/request", {"direction": "upload"})
    driver.leave(3, "coder")
    driver.wait(3)
    driver.join(4, "coder")
    driver.wait(30)
    assert list(driver.space.state.streams) == ["stream-1"]
    driver.leave(4, "coder")
    driver.take(1)
    driver.wait(5)
    closing = driver.last(1)
    assert (closing.kind, closing.sender) == ("stream/close", "gateway")
    assert closing.body == {"stream_id": "stream-1", "reason": "owner_disconnected"}
    assert driver.take(1) == ["stream/close stream-1"]
    driver.wait(5)
    assert driver.take(1) == []


def test_a_stream_opened_over_http_closes_if_its_owner_never_joins(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.send_envelope(None, "coder", "stream/request", {"direction": "upload"})
    driver.send_envelope(None, "files", "stream/request", {"direction": "upload"})
    driver.wait(1)
    driver.join(2, "coder")
    driver.take(1)
    driver.wait(5)
    assert driver.take(1) == ["stream/close stream-2"]
    assert [stream.owner for stream in driver.space.state.streams.values()] == ["coder"]


def test_frames_from_writers_reach_every_target(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.join(3, "coder")
    driver.send_envelope(3, "coder", "stream/request", {"direction": "upload"})
    driver.send_envelope(3, "coder", "stream/request", {"direction": "upload", "target": ["ada"]})
    driver.take(1)
    driver.take(3)
    driver.write(3, "coder", "stream-1", "all")
    driver.write(3, "coder", "stream-2", "ada only")
    assert driver.take(1) == ["#stream-1#all", "#stream-2#ada only"]
    assert driver.take(3) == ["#stream-1#all"]
    driver.write(1, "ada", "stream-1")
    driver.write(1, "ada", "stream-9")
    refusal = driver.last(1)
    assert (refusal.sender, refusal.body["error"], refusal.body["stream_id"]) == (
        "gateway",
        errors.UNAUTHORIZED_STREAM_WRITE,
        "stream-9",
    )
    assert len(driver.take(1)) == 2
    assert driver.take(3) == []


def test_a_paused_participant_may_send_again_when_resumed(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.join(3, "coder")
    driver.send_envelope(1, "ada", "participant/pause", {"timeout_seconds": 60}, to=["coder"])
    driver.take(3)
    refused = driver.send_envelope(3, "coder", "chat", {"text": "but"}).refused
    assert refused is not None
    assert (refused.error, refused.attempted_kind) == (errors.PAUSED, "chat")
    assert driver.take(3) == ["system/error paused"]
    assert driver.send_envelope(3, "coder", "participant/status", STATUS).accepted is not None
    driver.send_envelope(1, "ada", "participant/resume", to=["coder"])
    assert driver.send_envelope(3, "coder", "chat", {"text": "again"}).accepted is not None


def test_a_pause_that_times_out_is_followed_by_a_resume(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.join(3, "coder")
    driver.send_envelope(1, "ada", "participant/pause", {"timeout_seconds": 60}, to=["coder"], id="pause")
    driver.take(1)
    driver.wait(59)
    assert driver.take(1) == []
    driver.wait(1)
    resume = driver.last(1)
    assert (resume.kind, resume.sender, resume.addressees) == ("participant/resume", "system:gateway", ("coder",))
    assert (resume.body, resume.correlation_ids) == ({"reason": "timeout"}, ("pause",))
    assert driver.send_envelope(3, "coder", "chat", {"text": "back"}).accepted is not None


def test_a_participant_that_joins_while_paused_gets_the_pause(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.join(2, "coder")
    driver.send_envelope(1, "ada", "participant/pause", {"reason": "later", "timeout_seconds": 60}, to=["coder"])
    driver.leave(2, "coder")
    driver.wait(20)
    driver.take(1)
    driver.join(3, "coder")
    assert driver.take(1) == ["system/presence join"]
    pause = driver.last(3)
    assert (pause.sender, pause.kind, pause.addressees) == ("system:gateway", "participant/pause", ("coder",))
    assert pause.body == {"reason": "later", "timeout_seconds": 40}
    assert driver.take(3) == ["system/welcome", "participant/pause"]
    driver.wait(41)
    driver.leave(3, "coder")
    driver.join(4, "coder")
    assert driver.take(4) == ["system/welcome"]


def test_a_participant_that_was_shut_down_may_send_after_joining(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.join(3, "coder")
    driver.send_envelope(1, "ada", "participant/shutdown", to=["coder"])
    assert driver.send_envelope(3, "coder", "participant/status", STATUS).accepted is not None
    assert driver.send_envelope(3, "coder", "chat", {"text": "but"}).accepted is None
    assert driver.send_envelope(None, "coder", "chat", {"text": "by http"}).accepted is None
    driver.leave(3, "coder")
    driver.join(4, "coder")
    assert driver.send_envelope(4, "coder", "chat", {"text": "again"}).accepted is not None


def test_only_the_proposer_withdraws_a_proposal() -> None:
    people = "".join(f"\n  {name}: {{capabilities: [{{kind: 'mcp/*'}}]}}" for name in ("x", "y"))
    driver = SpaceDriver(parse_space(f"space: {{id: a}}\nparticipants:{people}"))
    driver.join(1, "x")
    driver.join(2, "y")
    driver.send_envelope(1, "x", "mcp/proposal", {"method": "tools/call"}, id="p")
    foreign = driver.send_envelope(2, "y", "mcp/withdraw", {"reason": "no"}, correlation_id=["p"]).refused
    assert foreign is not None
    assert foreign.error == errors.UNAUTHORIZED
    for kind in ("mcp/withdraw", "mcp/reject"):
        bare = driver.send_envelope(1, "x", kind, {"reason": "no"}).refused
        assert bare is not None
        assert bare.error == errors.INVALID_ENVELOPE
    assert driver.send_envelope(2, "y", "mcp/reject", {"reason": "busy"}, correlation_id=["p"]).accepted is not None
    assert driver.send_envelope(1, "x", "mcp/withdraw", {"reason": "timeout"}, correlation_id="p").accepted is not None


def test_the_rate_limit_applies_to_one_sender_only() -> None:
    limits = "limits: {envelopes_per_second: 2, envelope_burst: 3}"
    driver = SpaceDriver(parse_space(f"space: {{id: a}}\nparticipants: {{x: {{}}, y: {{}}}}\n{limits}"))
    driver.join(1, "x")
    driver.join(2, "y")
    driver.take(1)
    for _ in range(3):
        driver.send_envelope(1, "x", "chat", {"text": "more"})
    driver.write(1, "x", "stream-1")
    driver.send_envelope(1, "x", "chat", {"text": "more"})
    assert driver.take(1) == ["chat more"] * 3 + ["system/error rate_limited"] * 2
    assert driver.send_envelope(2, "y", "chat", {"text": "me"}).accepted is not None
    driver.wait(1)
    assert driver.send_envelope(1, "x", "chat", {"text": "later"}).accepted is not None


def test_a_log_file_and_a_socket_receive_as_one_participant(driver: SpaceDriver) -> None:
    driver.join(1, "ada")
    driver.take(1)
    driver.inbox[ConnectionId(7)] = []
    driver.perform(driver.space.connections.join_virtually(ConnectionId(7), ParticipantId("coder")))
    assert driver.space.connections.join_virtually(ConnectionId(8), ParticipantId("coder")) == ()
    assert (driver.take(7), driver.take(1)) == (["system/welcome"], [])
    driver.join(2, "bob")
    assert [one["id"] for one in driver.last(2).body["participants"]] == ["ada", "coder"]
    driver.join(3, "coder")
    assert driver.take(1) == ["system/presence join", "system/presence join"]
    driver.send_envelope(1, "ada", "chat", {"text": "both"})
    assert (driver.take(3), driver.take(7)[-1]) == (["system/welcome", "chat both"], "chat both")
    driver.leave(3, "coder")
    assert driver.take(1)[-1] == "system/presence leave"
    assert "coder" in driver.space.members
    assert list(driver.space.members) == ["ada", "coder", "bob"]
    driver.send_envelope(None, "coder", "participant/clear")
    assert driver.take(7)[-1] == "system/error capability_violation"


NAMES = st.sampled_from(["ada", "coder", "files", "nobody", "stream-1", "request", "*"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | NAMES, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def messages(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[str]]:
    """Draw a kind, a payload with keys of that kind and any values, and names for `to` and `correlation_id`."""
    kind = draw(st.sampled_from(sorted(PAYLOADS)))
    keys = st.sampled_from(sorted(PAYLOADS[kind].model_fields) or ["other"]) | st.just("other")
    return kind, draw(st.dictionaries(keys, JSON, max_size=4)), draw(st.lists(NAMES, max_size=2))


@given(said=st.lists(messages(), max_size=8))
def test_any_payload_is_either_accepted_or_refused(
    said: list[tuple[str, dict[str, Any], list[str]]],
) -> None:
    everybody = {name: {"capabilities": [{"kind": "*"}]} for name in ("ada", "coder")}
    driver = SpaceDriver(SpaceConfig.model_validate({"space": {"id": "a"}, "participants": everybody}))
    driver.join(1, "ada")
    driver.send_envelope(1, "ada", "stream/request", {"direction": "upload"}, id="request")
    for kind, payload, about in said:
        receipt = driver.send_envelope(None, "ada", kind, payload, to=about, correlation_id=about)
        assert (receipt.accepted is None) == (receipt.refused is not None)
    driver.wait(10)
    driver.join(2, "coder")
    for envelope in (*driver.history, driver.last(2)):
        assert envelope.encode()


class SpaceMachine(RuleBasedStateMachine):
    """In any order of events, members and connections agree and every member receives the same."""

    NAMES = ("ada", "bob", "coder", "files")

    def __init__(self) -> None:
        super().__init__()
        people = {name: {"capabilities": [{"kind": "chat"}, {"kind": "stream/*"}]} for name in self.NAMES}
        for name in ("coder", "files"):
            people[name]["command"] = "x"  # type: ignore[assignment]
        self.driver = SpaceDriver(SpaceConfig.model_validate({"space": {"id": "a"}, "participants": people}))
        self.owner: dict[int, str] = {}
        self.opened = 0

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        self.opened += 1
        self.owner[self.opened] = name
        self.driver.join(self.opened, name)

    @precondition(lambda self: self.owner)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.owner)))
        self.driver.leave(number, self.owner.pop(number))

    @precondition(lambda self: self.owner)
    @rule(data=st.data(), kind=st.sampled_from(["chat", "stream/request", "stream/close", "system/x", "space/kick"]))
    def send_envelope(self, data: st.DataObject, kind: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.owner)))
        before = {one: len(got) for one, got in self.driver.inbox.items()}
        receipt = self.driver.send_envelope(number, self.owner[number], kind, {"text": "x", "stream_id": "stream-1"})
        received = {one for one, got in self.driver.inbox.items() if len(got) > before.get(one, 0)}
        if receipt.accepted is not None:
            assert received == set(self.driver.admitted)
        else:
            assert received == {number}

    @rule(seconds=st.sampled_from([1, 6]))
    def wait(self, seconds: int) -> None:
        self.driver.wait(seconds)

    @invariant()
    def members_are_those_with_a_connection(self) -> None:
        space = self.driver.space
        here = {name for name in self.NAMES if name in space.members}
        assert here == {self.owner[number] for number in self.driver.admitted}
        assert set(space.membership.connections_of(self.NAMES)) == set(self.driver.admitted)

    @invariant()
    def agents_have_one_connection_and_people_may_have_several(self) -> None:
        for name in self.NAMES:
            admitted = [number for number in self.driver.admitted if self.owner[number] == name]
            if name in ("coder", "files"):
                assert len(admitted) <= 1
            else:
                assert admitted == [number for number, owner in self.owner.items() if owner == name]

    @invariant()
    def presence_matches_the_members(self) -> None:
        here: set[str] = set()
        for envelope in self.driver.history:
            if envelope.kind == "system/presence":
                name = envelope.body["participant"]["id"]
                here = here | {name} if envelope.body["event"] == "join" else here - {name}
        assert here == {name for name in self.NAMES if name in self.driver.space.members}


TestSpaceMachine = SpaceMachine.TestCase
