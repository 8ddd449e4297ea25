"""Spaces that apply the same events do the same, also when one of them was restored from a snapshot in the middle."""

import copy
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mew_protocol import errors
from mew_protocol.codec import decode_complete
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import parse_space
from mew_spaces.core.effects import Broadcast, CloseConnection, Deliver, Receipt
from mew_spaces.core.events import (
    EPOCH,
    BatchHeader,
    ConnectionId,
    ConnectionJoins,
    ConnectionLeaves,
    EnvelopeArrives,
    GatewayIsGone,
    GatewayStarts,
    InputEvent,
    TimePasses,
    decode_batch,
    encode_batch,
    encode_event,
    first_connection,
)
from mew_spaces.core.space_core import EventDecision, SpaceCore, SpaceSnapshot
from mew_spaces.core.system_messages import DerivedIds
from pydantic_core import to_json

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {command: x, capabilities: [{kind: "*"}]}
  coder: {command: x, capabilities: [{kind: chat}, {kind: "stream/*"}, {kind: participant/status}]}
limits: {members: 4, streams_per_member: 2}
"""
PEOPLE = [ParticipantId(name) for name in ("ada", "bob", "coder", "eve", "fay")]
NAMES = st.sampled_from(PEOPLE)
SENDERS = st.sampled_from(PEOPLE[:2])
"""Those who may send anything."""
IDS = st.sampled_from(["1", "2", "3", None])
SOCKETS = st.builds(
    lambda gateway, number: (ConnectionId(first_connection(gateway) + number), PEOPLE[number % len(PEOPLE)]),
    st.integers(1, 2),
    st.integers(0, 6),
)
"""Each connection has one participant."""


def envelope(kind: str, payload: Any = None, **headers: Any) -> st.SearchStrategy[bytes]:
    fields = {"kind": st.just(kind), "id": IDS, **headers}
    if payload is not None:
        fields["payload"] = payload
    return st.fixed_dictionaries(fields).map(lambda drawn: to_json({k: v for k, v in drawn.items() if v is not None}))


CORRELATED = {"correlation_id": st.lists(st.sampled_from(["1", "2", "3"]), min_size=1, max_size=2)}
ADDRESSED = {"to": st.lists(NAMES, max_size=2)}
PATTERNS = st.lists(st.sampled_from([{"kind": "chat"}, {"kind": "x/*"}]), min_size=1, max_size=2)
STREAM = st.fixed_dictionaries(
    {"stream_id": st.sampled_from(["stream-1", "stream-2"]), "participant_id": NAMES, "new_owner": NAMES}
)
CALL = st.sampled_from([{"method": "tools/call", "params": {"name": tool}} for tool in ("read", "write")])
STATUS = st.fixed_dictionaries(
    {
        "tokens": st.integers(1, 900),
        "max_tokens": st.just(1000),
        "messages_in_context": st.just(3),
        "context": st.builds(
            lambda second: {"basis": "reported", "measured_at": f"2026-01-01T00:00:0{second}Z"}, st.integers(0, 9)
        ),
    }
)
COMPLETE = [
    b'{"protocol":"mew/v0.4","id":"1","ts":"2026-01-01T00:00:00.000Z","from":"ada",' + rest
    for rest in (
        b'"kind":"chat","payload":{"text":"x"}}',
        b'"to":["bob"],"kind":"mcp/request","payload":{"n":1.5,"deep":[{"a":true}]}}',
        b'"kind":"capability/grant","payload":{"recipient":"bob","capabilities":[{"kind":"x/*"}]},"more":[]}',
    )
]
"""In the form that a gateway reads only once, and hands on with its event."""
ENVELOPES = st.one_of(
    st.sampled_from(COMPLETE),
    envelope("chat", st.fixed_dictionaries({"text": st.text(max_size=3)})),
    envelope("system/heartbeat"),
    envelope("participant/status", STATUS),
    envelope("space/invite", st.fixed_dictionaries({"participant_id": NAMES, "initial_capabilities": PATTERNS})),
    envelope("space/kick", st.fixed_dictionaries({"participant_id": NAMES})),
    envelope("capability/grant", st.fixed_dictionaries({"recipient": NAMES, "capabilities": PATTERNS})),
    envelope("capability/revoke", st.fixed_dictionaries({"recipient": NAMES, "capabilities": PATTERNS})),
    envelope("participant/pause", st.just({"timeout_seconds": 3}), **ADDRESSED),
    envelope("participant/resume", **ADDRESSED),
    envelope("participant/shutdown", **ADDRESSED),
    envelope("mcp/proposal", CALL, **ADDRESSED),
    envelope("mcp/request", CALL, **ADDRESSED, **CORRELATED),
    envelope("mcp/withdraw", **CORRELATED),
    envelope("mcp/reject", **CORRELATED),
    envelope("stream/request", st.just({"direction": "upload"}), **ADDRESSED),
    envelope("stream/close", STREAM),
    envelope("stream/grant-write", STREAM),
    envelope("stream/transfer-ownership", STREAM),
    st.sampled_from([b"{", b"[]", b'{"kind":"chat","payload":{"text":"\\ud83d"}}']),
)
EVENTS: st.SearchStrategy[InputEvent] = st.one_of(
    st.builds(
        lambda socket, checked_at: ConnectionJoins(socket[0], socket[1], checked_at), SOCKETS, st.sampled_from([4, 99])
    ),
    st.builds(lambda socket: ConnectionLeaves(socket[0], socket[1]), SOCKETS),
    st.builds(
        lambda socket, may_repeat, data: EnvelopeArrives(socket[0], socket[1], 0, may_repeat, data),
        SOCKETS,
        st.booleans(),
        ENVELOPES,
    ),
    st.builds(EnvelopeArrives, st.none(), NAMES, st.sampled_from([4, 99]), st.booleans(), ENVELOPES, st.none()),
    st.just(TimePasses()),
    st.just(GatewayStarts()),
    st.builds(GatewayIsGone, st.integers(1, 2)),
)
Step = tuple[int, float, list[InputEvent]]
STEPS = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from([0, 1, 4, -2]), st.lists(EVENTS, min_size=1, max_size=4)),
    min_size=1,
    max_size=12,
)


def new_space() -> SpaceCore:
    ids = DerivedIds(new_id=lambda: "local", new_token=lambda: "local")
    return SpaceCore(parse_space(SPACE), ids, clock=lambda: 0.0, epoch="epoch")


def outcome(applied: EventDecision) -> tuple[Any, ...]:
    receipt = applied.receipt
    return encode_event(applied.event), receipt.effects, receipt.accepted, receipt.refused, dict(receipt.answer)


def as_read(event: InputEvent) -> InputEvent:
    """The event as the gateway has it to which it came."""
    complete = decode_complete(event.data or b"", 10_000) if isinstance(event, EnvelopeArrives) else None
    if complete is None or not isinstance(event, EnvelopeArrives):
        return event
    assert complete[1] == event.data
    return event._replace(draft=complete[0])


def restored(space: SpaceCore) -> SpaceCore:
    fresh = new_space()
    fresh.restore(SpaceSnapshot.model_validate_json(space.snapshot().model_dump_json()))
    return fresh


def run(space: SpaceCore, place: int, batch: bytes) -> list[tuple[Any, ...]]:
    return [outcome(one) for one in space.replay(place, *decode_batch(batch))]


def check_cut(steps: list[Step], cut: int) -> None:
    """Apply the steps to two spaces; all they do must be equal.

    One has what its own gateway read; the other reads each batch, and is restored before the step `cut`.
    """
    one, other = new_space(), new_space()
    now = EPOCH + timedelta(days=20_000)
    started: list[InputEvent] = [GatewayStarts()]
    # The last ones show what no earlier effect did: who is on which list, in which order.
    last: list[InputEvent] = [join("ada", 9), TimePasses()]
    for place, (gateway, seconds, events) in enumerate(((1, 0, started), (2, 0, started), *steps, (1, 4, last)), 1):
        now += timedelta(seconds=seconds)
        header = BatchHeader(gateway, place, now, b"%016d" % place)
        batch = encode_batch(header, [encode_event(event) for event in events])
        assert decode_batch(batch) == (header, events)
        if place == cut + 3:
            other = restored(other)
        own = [outcome(applied) for applied in one.replay(place, header, [as_read(event) for event in events])]
        assert own == run(other, place, batch)
    assert one.snapshot().model_dump() == other.snapshot().model_dump()


@given(steps=STEPS, cut=st.integers(0, 12))
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_equal_events_have_equal_effects_on_a_restored_space(steps: list[Step], cut: int) -> None:
    check_cut(steps, cut)


def picture(space: SpaceCore) -> dict[str, Any]:
    """All that an envelope may change in a space."""
    wanted = set(SpaceSnapshot.model_fields)
    shown = space.snapshot().model_dump(include=wanted)
    membership = space.membership
    return {
        **copy.deepcopy(shown),
        "permissions": {name: membership.permissions_of(name).patterns for name in PEOPLE},
        "undecided": {to_json(one.envelope) for one in membership.proposals.undecided.values()},
    }


def connection(name: str, number: int = 1) -> ConnectionId:
    return ConnectionId(first_connection(1 if name in ("ada", "bob") else 2) + 16 * len(name) + number)


def join(name: str, number: int = 1, checked_at: int = 99) -> ConnectionJoins:
    return ConnectionJoins(connection(name, number), ParticipantId(name), checked_at)


def send(name: str, kind: str, payload: Any = None, number: int = 1, **headers: Any) -> EnvelopeArrives:
    data = to_json({"kind": kind, **headers, **({} if payload is None else {"payload": payload})})
    return EnvelopeArrives(connection(name, number), ParticipantId(name), 99, may_repeat=True, data=data)


def status(name: str, tokens: int, second: int, number: int = 1) -> EnvelopeArrives:
    context = {"basis": "reported", "measured_at": f"2024-10-04T00:00:0{second}Z"}
    figures = {"tokens": tokens, "max_tokens": 1000, "messages_in_context": 3, "context": context}
    return send(name, "participant/status", figures, number)


PROPOSED = {"method": "tools/call", "params": {"name": "read"}}
STORY: list[Step] = [
    (1, 1, [join("ada"), join("bob"), join("ada", 2)]),
    (2, 1, [join("coder"), status("coder", 100, 5), send("coder", "stream/request", {"direction": "upload"}, id="1")]),
    (1, 6, [status("bob", 100, 1)]),
    (
        1,
        6,
        [
            status("bob", 500, 8),
            send("bob", "mcp/proposal", PROPOSED, id="p"),
            send("ada", "chat", {"text": "x"}, id="c"),
        ],
    ),
    (1, 1, [send("ada", "mcp/proposal", PROPOSED, id="q"), send("ada", "mcp/proposal", PROPOSED, id="p")]),
    (1, 1, [send("ada", "mcp/proposal", PROPOSED, id="r")]),
    (1, 1, [send("bob", "mcp/withdraw", id="w", correlation_id=["p"])]),
    (2, 1, [send("coder", "chat", {"text": "x"}, id="c"), send("ada", "chat", {"text": "x"}, id="c")]),
    (1, 1, [send("ada", "capability/grant", {"recipient": "coder", "capabilities": [{"kind": "x"}]}, id="g")]),
    (1, 1, [send("ada", "participant/pause", {"timeout_seconds": 4}, to=["coder"]), send("coder", "x")]),
    (1, 1, [send("ada", "space/invite", {"participant_id": "eve", "initial_capabilities": [{"kind": "chat"}]})]),
    (2, 1, [join("eve"), status("eve", 10, 1), status("bob", 900, 2)]),
    (2, 1, [send("coder", "x"), ConnectionLeaves(connection("coder"), ParticipantId("coder"))]),
    (2, 1, [status("eve", 20, 0), send("coder", "chat", {"text": "late"})]),
    (1, 1, [send("ada", "space/kick", {"participant_id": "eve"}), join("eve", 2, checked_at=5)]),
    (1, 1, [join("eve", 3, checked_at=5), ConnectionLeaves(connection("bob"), ParticipantId("bob"))]),
    (2, 3, [TimePasses(), join("coder", 2), send("coder", "x", number=2)]),
    (1, 1, [send("ada", "participant/shutdown", to=["coder"]), send("coder", "chat", {"text": "x"}, number=2)]),
    (1, 2, [TimePasses(), GatewayIsGone(2)]),
    (2, 1, [join("coder", 3)]),
    (1, 2, [TimePasses(), send("ada", "chat", {"text": "y"}, number=2, id="c")]),
    (1, 1, [send("bob", "mcp/proposal", PROPOSED, id="h")._replace(connection=None)]),
    (1, 1, [TimePasses()]),
    (1, 6, [TimePasses()]),
]


@pytest.mark.parametrize("cut", range(len(STORY) + 1))
def test_a_space_restored_at_any_point_continues_alike(cut: int) -> None:
    check_cut(STORY, cut)


SENT = st.lists(st.tuples(SENDERS, ENVELOPES), min_size=1, max_size=10)


@given(cut=st.integers(3, len(STORY)), kept=SENT, refused=SENT)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_an_envelope_that_is_only_decided_changes_nothing(
    cut: int, kept: list[tuple[ParticipantId, bytes]], refused: list[tuple[ParticipantId, bytes]]
) -> None:
    space, now = new_space(), EPOCH + timedelta(days=20_000)
    started: list[InputEvent] = [GatewayStarts()]
    sent: list[InputEvent] = [
        EnvelopeArrives(None, name, 99, may_repeat=False, data=data) for name, data in (*kept, *refused)
    ]
    story = ((1, 0, started), (2, 0, started), *STORY[:cut], (1, 0, sent[: len(kept)]))
    for place, (gateway, seconds, events) in enumerate(story, 1):
        now += timedelta(seconds=seconds)
        list(space.replay(place, BatchHeader(gateway, place, now, b"%016d" % place), list(events)))
    before = picture(space)
    for event in sent[len(kept) :]:
        space.decide(event, now=now)
        assert picture(space) == before


def test_the_story_reaches_every_part_of_a_snapshot() -> None:
    """A join with a token that was revoked meanwhile, a repeated envelope, and the connections of a dead gateway."""
    space = new_space()
    receipts: list[Receipt] = []
    started: list[InputEvent] = [GatewayStarts()]
    for place, (gateway, seconds, events) in enumerate([(1, 0.0, started), (2, 0.0, started), *STORY], 1):
        header = BatchHeader(gateway, place, EPOCH + timedelta(days=20_000, seconds=seconds), b"%016d" % place)
        receipts += [one.receipt for one in space.replay(place, header, events)]
    closed = [one.code for receipt in receipts for one in receipt.effects if isinstance(one, CloseConnection)]
    assert closed.count(errors.CLOSE_UNAUTHORIZED) == 2
    assert sum(receipt.answer.get("status") == "duplicate" for receipt in receipts) == 1
    numbered = [one.envelope for receipt in receipts for one in receipt.effects if isinstance(one, Broadcast)]
    assert (
        len(numbered)
        == space.sequence
        == len({one.id for one in numbered if len(one.id) > 1}) + sum(len(one.id) == 1 for one in numbered)
    )
    assert list(space.gateways) == [1]
    assert set(space.members) == {"ada"}
    told = [one.envelope for receipt in receipts for one in receipt.effects if isinstance(one, Deliver)]
    token = next(one.body["token"] for one in told if one.kind == "space/invite-ack")
    assert token not in str([one.as_dict() for one in numbered])


def test_a_join_that_is_stored_late_replaces_no_newer_connection() -> None:
    space = new_space()
    bob = PEOPLE[1]
    first, second, third = (ConnectionId(first_connection(gateway) + 1) for gateway in (1, 2, 3))
    for place, gateway in enumerate((1, 2, 3), 1):
        list(space.replay(place, BatchHeader(gateway, place, EPOCH, b""), [GatewayStarts()]))

    def join(place: int, gateway: int, connection: ConnectionId, *, checked_at: int) -> list[ConnectionId]:
        header = BatchHeader(gateway, place, EPOCH, b"%016d" % place)
        (applied,) = space.replay(place, header, [ConnectionJoins(connection, bob, checked_at)])
        closed = [one.connection for one in applied.receipt.effects if isinstance(one, CloseConnection)]
        assert closed == ([] if connection in space.members[bob].sockets else [connection])
        return list(space.members[bob].sockets)

    assert join(4, 2, second, checked_at=3) == [second]
    assert join(5, 1, first, checked_at=3) == [second]
    assert join(6, 3, third, checked_at=4) == [third]
