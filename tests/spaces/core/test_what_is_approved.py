"""What runs is byte for byte what an approver was shown, in any order of events on two gateways."""

from datetime import timedelta
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mew_protocol.envelope import Envelope
from mew_protocol.ids import ParticipantId
from mew_protocol.json_values import canonical_json
from mew_protocol.payloads.mcp import UndecidedProposal, approval_of, digest_of
from mew_spaces.config.loading import parse_space
from mew_spaces.core.events import (
    EPOCH,
    BatchHeader,
    ConnectionId,
    ConnectionJoins,
    EnvelopeArrives,
    GatewayStarts,
    InputEvent,
    first_connection,
)
from mew_spaces.core.space_core import SpaceCore, SpaceSnapshot
from mew_spaces.core.system_messages import DerivedIds
from pydantic_core import to_json

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: "*"}]}
  coder: {command: x, capabilities: [{kind: mcp/proposal}, {kind: mcp/withdraw}]}
  eve: {command: x, capabilities: [{kind: mcp/proposal}, {kind: mcp/withdraw}]}
  files: {command: x, capabilities: [{kind: chat}]}
"""
GATEWAY_OF = {"ada": 1, "bob": 2, "coder": 1, "eve": 2}
IDS = ("3f2a9c1b-1", "3f2a9c1b-2", "3f2a9c1b", "p")
CALLS: tuple[dict[str, Any], ...] = (
    {"method": "tools/call", "params": {"name": "write", "arguments": {"path": "a"}}},
    {"method": "tools/call", "params": {"name": "write", "arguments": {"path": "b"}}},
    {"method": "tools/call", "params": {"name": "write", "arguments": {"path": "a"}, "further": 1}},
    {"method": "tools/call", "params": {"name": "delete"}},
    {"method": "resources/read"},
)


class Act(NamedTuple):
    """One thing that a participant does. A person acts on the proposal `place` of those that it saw `age` looks ago."""

    who: str
    what: str
    id: str = ""
    call: int = 0
    to: str = "files"
    place: int = 0
    typed: bool = False


PROPOSERS = st.sampled_from(["coder", "eve"])
PEOPLE = st.sampled_from(["ada", "bob"])
NAMES, PLACES = st.sampled_from(IDS), st.integers(0, 3)
PROPOSE = st.builds(
    Act, PROPOSERS, st.just("propose"), NAMES, st.integers(0, len(CALLS) - 1), st.sampled_from(["files", "ada", ""])
)
ACTS = st.one_of(
    PROPOSE,
    PROPOSE,
    st.builds(Act, PROPOSERS, st.just("withdraw"), NAMES),
    st.builds(Act, PEOPLE, st.just("look")),
    st.builds(Act, PEOPLE, st.just("approve"), place=PLACES, typed=st.booleans()),
    st.builds(Act, PEOPLE, st.just("reject"), place=PLACES),
    st.just(Act("", "restart")),
)


class World:
    """Two gateways of one space, and what each person was shown last."""

    def __init__(self) -> None:
        self.gateways = {1: new_space(), 2: new_space()}
        self.batches = 0
        self.now = EPOCH + timedelta(days=20_000)
        self.shown: dict[str, tuple[UndecidedProposal, ...]] = {"ada": (), "bob": ()}
        self.ran: list[str] = []
        self.happen(GatewayStarts(), *(ConnectionJoins(connection(who), ParticipantId(who), 99) for who in GATEWAY_OF))

    def happen(self, *events: InputEvent) -> list[Envelope]:
        """Apply a batch on both gateways. Returns the envelopes that were accepted."""
        self.batches += 1
        self.now += timedelta(seconds=1)
        header = BatchHeader(1, self.batches, self.now, b"%016d" % self.batches)
        outcomes = [
            [one.receipt.accepted for one in gateway.replay(self.batches, header, list(events))]
            for gateway in self.gateways.values()
        ]
        assert outcomes[0] == outcomes[1]
        return [one for one in outcomes[0] if one is not None]

    def send(self, who: str, kind: str, payload: Any, **headers: Any) -> list[Envelope]:
        """Send an envelope over a plain connection."""
        data = to_json({"kind": kind, "payload": payload, **{key: one for key, one in headers.items() if one}})
        return self.happen(EnvelopeArrives(connection(who), ParticipantId(who), 99, may_repeat=False, data=data))

    def listed(self, who: str) -> tuple[UndecidedProposal, ...]:
        """Return what a person's gateway lists."""
        return self.gateways[GATEWAY_OF[who]].proposals(now=self.now).proposals

    def approve(self, who: str, seen: UndecidedProposal, *, typed: bool) -> None:
        """Approve what a person saw: by the proposal that its client holds, or by the name that it read and typed."""
        chosen = seen
        if typed:
            name = seen.short_id or seen.id
            found = [one for one in self.listed(who) if one.is_named(name)]
            assert len(found) <= 1, "a name means one proposal"
            if not found:
                return
            chosen = found[0]
        payload = approval_of(chosen)
        accepted = self.send(who, "mcp/request", payload, to=list(chosen.addressees), correlation_id=[chosen.id])
        for request in accepted:
            self.ran.append(chosen.id)
            sent, proposed = request.body, seen.body
            assert [canonical_json(sent.get(key)) for key in ("method", "params")] == [
                canonical_json(proposed.get(key)) for key in ("method", "params")
            ]
            assert (request.addressees, sent["proposal_digest"]) == (seen.addressees, seen.digest)
            assert seen.digest == digest_of(sent, seen.sender, request.addressees)

    def restart(self) -> None:
        """Start the second gateway anew, from a snapshot of the first."""
        fresh = new_space()
        fresh.restore(SpaceSnapshot.model_validate_json(self.gateways[1].snapshot().model_dump_json()))
        self.gateways[2] = fresh


def new_space() -> SpaceCore:
    ids = DerivedIds(new_id=lambda: "local", new_token=lambda: "local")
    return SpaceCore(parse_space(SPACE), ids, clock=lambda: 0.0, epoch="epoch")


def connection(who: str) -> ConnectionId:
    return ConnectionId(first_connection(GATEWAY_OF[who]) + list(GATEWAY_OF).index(who))


def perform(world: World, act: Act) -> None:
    match act.what:
        case "propose":
            world.send(act.who, "mcp/proposal", CALLS[act.call], id=act.id, to=[act.to] if act.to else None)
        case "withdraw":
            world.send(act.who, "mcp/withdraw", {"reason": "no"}, correlation_id=[act.id])
        case "look":
            world.shown[act.who] = world.listed(act.who)
        case "restart":
            world.restart()
        case what:
            seen = world.shown[act.who]
            if not seen:
                return
            one = seen[act.place % len(seen)]
            if what == "reject":
                world.send(act.who, "mcp/reject", {"reason": "no"}, to=[one.sender], correlation_id=[one.id])
            else:
                world.approve(act.who, one, typed=act.typed)


@given(st.lists(ACTS, min_size=1, max_size=25))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_digest_covers_exactly_the_call_that_runs(acts: list[Act]) -> None:
    world = World()
    for act in acts:
        perform(world, act)
    assert len(world.ran) == len(set(world.ran)), "a proposal runs once"


def test_an_approval_typed_after_a_change_runs_nothing() -> None:
    world = World()
    for act in (
        Act("eve", "propose", IDS[0]),
        Act("ada", "look"),
        Act("eve", "withdraw", IDS[0]),
        Act("eve", "propose", IDS[0], 3),
        Act("eve", "propose", IDS[1], 3),
        Act("eve", "propose", IDS[2], 3),
    ):
        perform(world, act)
    assert [one.id for one in world.listed("ada")] == [IDS[1]]
    for typed in (True, False):
        perform(world, Act("ada", "approve", typed=typed))
    assert world.ran == []
    perform(world, Act("ada", "look"))
    perform(world, Act("ada", "approve", typed=True))
    assert world.ran == [IDS[1]]
