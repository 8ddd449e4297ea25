"""A right ends with the right that it came from."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.core.containment import covers
from mew_spaces.core.space_core import SpaceCore
from mew_spaces.core.state import CapabilityGrant, Invitation, SpaceState

from tests.support.live_membership import LiveMembership
from tests.support.operations import growth
from tests.support.space_driver import SpaceDriver

RIGHTS: list[dict[str, Any]] = [{"kind": "capability/*"}, {"kind": "space/*"}]
WORK: dict[str, Any] = {"kind": "mcp/request", "to": ["files"]}
SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: "*"}]}
  m1: {command: x, capabilities: [{kind: chat}]}
  m2: {command: x, capabilities: [{kind: chat}]}
  m3: {command: x, capabilities: [{kind: chat}]}
"""


@pytest.fixture
def driver() -> SpaceDriver:
    driver = SpaceDriver(parse_space(SPACE))
    for number, name in enumerate(["ada", "bob", "m1", "m2", "m3"], start=1):
        driver.join(number, name)
    return driver


def act(driver: SpaceDriver, sender: str, kind: str, **payload: Any) -> Any:
    connection = {"ada": 1, "bob": 2, "m1": 3, "m2": 4, "m3": 5}.get(sender)
    return driver.send_envelope(connection, sender, kind, payload)


def grant(driver: SpaceDriver, giver: str, recipient: str, *patterns: Any, **more: Any) -> Any:
    return act(driver, giver, "capability/grant", recipient=recipient, capabilities=patterns or [*RIGHTS, WORK], **more)


def revoke(driver: SpaceDriver, sender: str, recipient: str, *patterns: Any, **more: Any) -> Any:
    by = {} if "grant_id" in more else {"capabilities": patterns or [{"kind": "*"}]}
    return act(driver, sender, "capability/revoke", recipient=recipient, **by, **more)


def holds(driver: SpaceDriver, name: str, pattern: Any = WORK) -> bool:
    return covers(driver.space.membership.permissions_of(name).patterns, pattern)


def test_a_revocation_ends_passed_on_rights(driver: SpaceDriver) -> None:
    grant(driver, "ada", "m1")
    grant(driver, "m1", "m2")
    grant(driver, "m2", "m3", WORK)
    for connection in (2, 5):
        driver.take(connection)
    receipt = revoke(driver, "ada", "m1")
    assert receipt.answer["revoked"] == [*RIGHTS, WORK]
    assert receipt.answer["ended"] == [
        {"participant": "m2", "granted_by": "m1", "capabilities": [*RIGHTS, WORK]},
        {"participant": "m3", "granted_by": "m2", "capabilities": [WORK]},
    ]
    assert driver.take(2) == ["capability/ended", "capability/revoke"]
    assert driver.take(5) == ["system/welcome", "capability/ended", "capability/revoke"]
    assert not any(holds(driver, name) for name in ("m1", "m2", "m3"))
    assert grant(driver, "m2", "m1").refused.error == "capability_violation"


def test_a_right_that_was_given_in_a_circle_ends(driver: SpaceDriver) -> None:
    grant(driver, "ada", "m1", grant_id="first")
    grant(driver, "m1", "m2")
    grant(driver, "m2", "m1")
    revoke(driver, "ada", "m1", grant_id="first")
    assert not holds(driver, "m1")
    assert not holds(driver, "m2")
    assert driver.space.state.grants == {}


def test_guests_lose_the_rights_their_inviter_lost(driver: SpaceDriver) -> None:
    grant(driver, "ada", "m1")
    assert act(driver, "m1", "space/invite", participant_id="guest", initial_capabilities=[*RIGHTS, WORK]).accepted
    assert holds(driver, "guest")
    assert revoke(driver, "ada", "m1").answer["ended"][0]["participant"] == "guest"
    assert not holds(driver, "guest")
    assert driver.space.membership.has("guest")


def test_a_removal_ends_passed_on_rights(driver: SpaceDriver) -> None:
    grant(driver, "ada", "m1")
    grant(driver, "m1", "m2")
    receipt = act(driver, "ada", "space/kick", participant_id="m1")
    assert [one["participant"] for one in receipt.answer["ended"]] == ["m2"]
    assert not holds(driver, "m2")
    assert driver.space.state.grants == {}


def test_a_right_with_another_source_stays(driver: SpaceDriver) -> None:
    grant(driver, "ada", "m1")
    grant(driver, "m1", "m2")
    grant(driver, "bob", "m2", {"kind": "mcp/*"}, {"kind": "capability/grant"})
    grant(driver, "m2", "m3", WORK)
    receipt = revoke(driver, "ada", "m1")
    assert [one["participant"] for one in receipt.answer["ended"]] == ["m2"]
    assert holds(driver, "m3")
    revoke(driver, "bob", "m2")
    assert not holds(driver, "m3")


def test_kept_rights_never_return_to_their_former_holder(driver: SpaceDriver) -> None:
    grant(driver, "ada", "m1")
    grant(driver, "m1", "m2")
    grant(driver, "m2", "m3")
    receipt = revoke(driver, "ada", "m1", keep_passed_on=True)
    assert receipt.answer == {"revoked": [*RIGHTS, WORK], "ended": []}
    assert (holds(driver, "m1"), holds(driver, "m2"), holds(driver, "m3")) == (False, True, True)
    for giver in ("m2", "m3"):
        refused = grant(driver, giver, "m1", WORK).refused
        assert refused.error == "grant_exceeds_own"
        assert "revoked from 'm1'" in refused.message
    act(driver, "m3", "space/invite", participant_id="guest", initial_capabilities=[*RIGHTS, WORK])
    assert act(driver, "guest", "capability/grant", recipient="m1", capabilities=[WORK]).refused is not None
    grant(driver, "bob", "m3", {"kind": "mcp/*"})
    assert grant(driver, "m3", "m1", WORK).accepted is not None  # from bob
    assert holds(driver, "m1")
    revoke(driver, "bob", "m3", {"kind": "mcp/*"})
    assert not holds(driver, "m1")


def test_a_right_that_came_back_ends_with_a_revocation_that_keeps_others(driver: SpaceDriver) -> None:
    grant(driver, "ada", "m1", grant_id="first")
    grant(driver, "m1", "m2")
    grant(driver, "m2", "m1")
    revoke(driver, "ada", "m1", grant_id="first", keep_passed_on=True)
    assert (holds(driver, "m1"), holds(driver, "m2")) == (False, True)
    revoke(driver, "ada", "m1")  # now for all
    assert not holds(driver, "m2")
    assert driver.space.state.grants == {}


def test_absence_ends_a_grant_but_not_passed_on_rights(driver: SpaceDriver) -> None:
    grant(driver, "ada", "m1")
    grant(driver, "m1", "m2")
    driver.leave(3, "m1")
    driver.wait(6)
    assert (holds(driver, "m1"), holds(driver, "m2")) == (False, True)
    driver.join(3, "m1")
    assert grant(driver, "m2", "m1").accepted is not None
    revoke(driver, "ada", "m1")
    assert not holds(driver, "m1")
    assert not holds(driver, "m2")
    assert driver.space.state.grants == {}


def test_links_that_nothing_depends_on_are_dropped(driver: SpaceDriver) -> None:
    grant(driver, "ada", "m1")
    revoke(driver, "ada", "m1", keep_passed_on=True)
    assert driver.space.state.grants == {}


def test_rights_that_space_yaml_no_longer_gives_end_at_the_start(driver: SpaceDriver) -> None:
    grant(driver, "ada", "m1")
    grant(driver, "m1", "m2", WORK)
    act(driver, "ada", "space/invite", participant_id="guest", initial_capabilities=[WORK, {"kind": "chat"}])
    stored = SpaceState.model_validate_json(driver.space.state.model_dump_json())
    same = LiveMembership(parse_space(SPACE), stored)
    assert same.end_unfounded() == ((), ())
    wider = parse_space(SPACE.replace('ada: {capabilities: [{kind: "*"}]}', 'ada: {capabilities: [{kind: "**"}]}'))
    assert LiveMembership(wider, stored.model_copy(deep=True)).end_unfounded()[1] == ()
    less = parse_space(SPACE.replace('ada: {capabilities: [{kind: "*"}]}', "ada: {capabilities: [{kind: chat}]}"))
    changed = LiveMembership(less, stored)
    _, ended = changed.end_unfounded()
    assert {one.participant for one in ended} == {"m1", "m2", "guest"}
    assert changed.state.grants == {}
    assert changed.state.invited["guest"].capabilities == ({"kind": "chat"},)


def test_rights_given_without_checks_get_their_sources_with_checks() -> None:
    state = SpaceState()
    unchecked = {"names": frozenset({"g"}), "patterns": ({"kind": "mcp/*"},), "through": ((),)}
    state.grants = {
        "m1": (CapabilityGrant(granter="ada", **unchecked),),
        "m2": (CapabilityGrant(granter="m1", **unchecked),),
        "m3": (CapabilityGrant(granter="gone", **unchecked),),
    }
    state.invited = {"guest": Invitation(capabilities=(WORK,), through=((),), invited_by="m2", invited_at="now")}
    membership = LiveMembership(parse_space(SPACE), state)
    assert [one.participant for one in membership.end_unfounded()[1]] == ["m3"]
    _, ended = membership.revoke("m1", grant_id="g")
    assert [one.participant for one in ended] == ["guest", "m1", "m2"]


def test_without_checks_rights_need_no_source() -> None:
    driver = SpaceDriver(parse_space(SPACE + "capabilities: {check_grants: false, check_invites: false}\n"))
    driver.join(1, "ada")
    driver.join(3, "m1")
    grant(driver, "ada", "m1", *RIGHTS)
    grant(driver, "m1", "m2", WORK)
    act(driver, "m1", "space/invite", participant_id="guest", initial_capabilities=[WORK])
    revoke(driver, "ada", "m1")
    assert holds(driver, "m2")
    assert holds(driver, "guest")
    assert {one["participant"] for one in act(driver, "ada", "space/kick", participant_id="m1").answer["ended"]} == {
        "m2",
        "guest",
    }


def test_a_long_list_of_ended_rights_is_cut_with_a_count() -> None:
    driver = SpaceDriver(parse_space(SPACE + "limits: {kept_payload_bytes: 2000}\n"))
    for number, name in enumerate(["ada", "bob", "m1", "m2", "m3"], start=1):
        driver.join(number, name)
    grant(driver, "ada", "m1")
    for number in range(100):
        receipt = act(
            driver,
            "m1",
            "space/invite",
            participant_id=f"guest-{number}",
            initial_capabilities=[WORK, {"kind": "mcp/*"}],
        )
        assert receipt.refused is not None
        act(driver, "m1", "space/invite", participant_id=f"guest-{number}", initial_capabilities=[WORK])
    answer = revoke(driver, "ada", "m1").answer
    assert len(answer["ended"]) + answer["omitted"] == 100
    assert 5 < len(answer["ended"]) < 40


def cascade(recipients: int) -> Callable[[], None]:
    """A revocation that ends one right of each recipient, three steps away."""
    names = ["m1", "m2", *(f"p{number}" for number in range(recipients))]
    people = {"ada": {"capabilities": [{"kind": "*"}]}, **{name: {"role": "observer"} for name in names}}
    state = SpaceState()
    membership = LiveMembership(SpaceConfig.model_validate({"space": {"id": "a"}, "participants": people}), state)
    for giver, recipient in (("ada", "m1"), ("m1", "m2"), *(("m2", name) for name in names[2:])):
        (through,) = membership.sources(giver, [WORK], recipient)
        grant = CapabilityGrant(names=frozenset({"g"}), granter=giver, patterns=(WORK,), through=(through or (),))
        membership.grant(recipient, grant)

    def run() -> None:
        for keep in (True, False):
            membership.revoke("m1", grant_id="g", keep_passed_on=keep)
        assert state.grants == {}

    return run


def test_the_calls_of_a_cascade_grow_with_the_number_of_recipients() -> None:
    assert growth(cascade, 200) < 5


NAMES = st.sampled_from(["m1", "m2", "m3", "g1", "g2"])
GIVERS = st.sampled_from(["ada", "bob", "m1", "m2", "m3", "g1", "g2"])
PATTERNS = st.sampled_from(
    [*RIGHTS, WORK, {"kind": "mcp/*"}, {"kind": ["capability/grant", "mcp/request"]}, {"kind": "*"}]
)


class ChainMachine(RuleBasedStateMachine):
    """Compares with an own record of who gave what to whom: each right must follow from a configured one."""

    def __init__(self) -> None:
        super().__init__()
        people: dict[str, Any] = {name: {"capabilities": [{"kind": "*"}]} for name in ("ada", "bob")}
        people |= {name: {"command": "x", "capabilities": [{"kind": "chat"}]} for name in ("m1", "m2", "m3")}
        self.config = SpaceConfig.model_validate({"space": {"id": "a"}, "participants": people})
        self.driver = SpaceDriver(self.config)
        self.connections: dict[str, int] = {}
        self.count = 0
        for name in people:
            self.join(name)

    def send(self, sender: str, kind: str, **payload: Any) -> Any:
        self.count += 1
        return self.driver.send_envelope(self.connections.get(sender), sender, kind, payload, id=f"e{self.count}")

    def join(self, name: str) -> None:
        self.count += 1
        self.connections[name] = self.count
        self.driver.join(self.count, name)

    @rule(giver=GIVERS, recipient=NAMES, pattern=PATTERNS)
    def grant(self, giver: str, recipient: str, pattern: Any) -> None:
        self.send(giver, "capability/grant", recipient=recipient, capabilities=[pattern])
        self.send(giver, "capability/grant", recipient=recipient, capabilities=RIGHTS)

    @rule(giver=GIVERS, recipient=NAMES, pattern=PATTERNS)
    def invite(self, giver: str, recipient: str, pattern: Any) -> None:
        self.send(giver, "space/invite", participant_id=recipient, initial_capabilities=[pattern, *RIGHTS])

    @rule(sender=st.sampled_from(["ada", "bob", "m1"]), recipient=NAMES, pattern=PATTERNS)
    def revoke(self, sender: str, recipient: str, pattern: Any) -> None:
        receipt = self.send(sender, "capability/revoke", recipient=recipient, capabilities=[pattern])
        if receipt.accepted is not None:
            self.check_revoked(recipient, pattern)

    @rule(data=st.data(), recipient=NAMES, keep=st.booleans())
    def revoke_by_id(self, data: st.DataObject, recipient: str, keep: bool) -> None:
        grants = self.driver.space.state.grants.get(recipient, ())
        if grants:
            grant_id = data.draw(st.sampled_from(sorted(name for one in grants for name in one.names) or ["none"]))
            self.send("ada", "capability/revoke", recipient=recipient, grant_id=grant_id, keep_passed_on=keep)

    @rule(recipient=NAMES, pattern=PATTERNS)
    def revoke_and_keep(self, recipient: str, pattern: Any) -> None:
        self.send("ada", "capability/revoke", recipient=recipient, capabilities=[pattern], keep_passed_on=True)
        self.check_revoked(recipient, pattern)
        for giver in ("m1", "m2", "m3", "g1", "g2"):
            if holds(self.driver, giver, pattern) and giver != recipient:
                before = self.space.state.model_copy(deep=True)
                if self.send(giver, "capability/grant", recipient=recipient, capabilities=[pattern]).accepted:
                    self.check_independent(before, giver, recipient)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        if self.send("ada", "space/kick", participant_id=name).accepted is not None:
            self.connections.pop(name, None)

    @rule(name=NAMES)
    def stay_away_and_return(self, name: str) -> None:
        if name in self.connections:
            self.driver.leave(self.connections.pop(name), name)
            self.driver.wait(6)
        if self.space.membership.has(name):
            self.join(name)

    @rule()
    def restart(self) -> None:
        state = SpaceState.model_validate_json(self.space.state.model_dump_json())
        assert LiveMembership(self.config, state).end_unfounded()[1] == ()

    @property
    def space(self) -> SpaceCore:
        return self.driver.space

    def check_revoked(self, recipient: str, pattern: Any) -> None:
        for one in self.space.state.grants.get(recipient, ()):
            assert one.status != "held" or not any(covers([pattern], each) for each in one.patterns)

    def check_independent(self, before: SpaceState, giver: str, recipient: str) -> None:
        """The giver has it without any right that was withdrawn from the recipient."""
        before.grants[recipient] = tuple(one for one in before.grants.get(recipient, ()) if one.status != "withdrawn")
        membership = LiveMembership(self.config, before)
        membership.end_unfounded()
        new = self.space.state.grants[recipient][-1]
        assert all(covers(membership.permissions_of(giver).patterns, one) for one in new.patterns)

    @invariant()
    def every_right_follows_from_a_configured_one(self) -> None:
        state = self.space.state
        given: list[tuple[str, str, Any]] = []
        for name, invitation in state.invited.items():
            given += [(name, invitation.invited_by, one) for one in invitation.capabilities]
        for name, grants in state.grants.items():
            given += [(name, one.granter, pattern) for one in grants for pattern in one.patterns]
        configured = {
            name: [] if name in state.removed or name in state.invited else list(self.config.patterns_of(name))
            for name in self.config.participants
        }
        founded: dict[str, list[Any]] = {name: list(patterns) for name, patterns in configured.items()}
        waiting = given
        while True:
            rest = [one for one in waiting if not covers(founded.get(one[1], []), one[2])]
            if len(rest) == len(waiting):
                break
            for name, _, pattern in (one for one in waiting if one not in rest):
                founded.setdefault(name, []).append(pattern)
            waiting = rest
        assert waiting == []


TestChains = ChainMachine.TestCase
TestChains.settings = settings(max_examples=150, stateful_step_count=30)
