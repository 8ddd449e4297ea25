"""Who may be in a space, who is in it, and what each participant may send."""

import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from mew_protocol import kinds
from mew_protocol.capability import BASELINE
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.ids import ParticipantId
from mew_protocol.payloads.capability import EndedRights
from mew_protocol.payloads.mcp import KEPT_SHORT
from mew_protocol.payloads.participant import Pause
from mew_spaces.config.loading import parse_space
from mew_spaces.core import proposals as proposals_module
from mew_spaces.core.events import ConnectionId
from mew_spaces.core.membership import MemberConnections, Membership
from mew_spaces.core.state import CapabilityGrant, Change, Invitation, SpaceState

from tests.support.live_membership import LiveMembership

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CHAT: dict[str, Any] = {"kind": "chat"}
CALL: dict[str, Any] = {"kind": "mcp/request", "payload": {"n": 1}}
HELLO = Draft(kind="chat", payload={"text": "x"})
SPACE = """
space: {id: demo}
participants:
  ada: {name: Ada, capabilities: [{kind: "*"}]}
  coder: {name: Coder, command: mew, capabilities: [{kind: chat}]}
  twin: {name: Coder, command: mew}
defaults: {capabilities: [{kind: chat/acknowledge}]}
"""
INVITATION = Invitation(capabilities=(CALL,), through=((),), invited_by="ada", invited_at="now")


@pytest.fixture
def membership() -> Membership:
    return LiveMembership(parse_space(SPACE), SpaceState())


@pytest.fixture
def granted(membership: Membership) -> Membership:
    """coder holds two grants: g1 (also called mine) and g2."""
    names = frozenset({"g1", "mine"})
    membership.grant("coder", CapabilityGrant(names=names, granter="ada", patterns=(CHAT, CALL), through=((), ())))
    membership.grant("coder", CapabilityGrant(names=frozenset({"g2"}), granter="ada", patterns=(CHAT,), through=((),)))
    return membership


def patterns_of(revoked: tuple[Any, tuple[EndedRights, ...]]) -> tuple[dict[str, Any], ...]:
    return tuple(pattern for one in revoked[1] for pattern in one.capabilities)


def test_members_keep_join_order_and_all_their_connections(membership: Membership) -> None:
    members = membership.connected
    members[ParticipantId("bob")] = MemberConnections([ConnectionId(3)])
    members[ParticipantId("ada")] = MemberConnections([ConnectionId(1), ConnectionId(2)], logs=[ConnectionId(9)])
    members[ParticipantId("log")] = MemberConnections(logs=[ConnectionId(4)])
    assert list(members) == ["bob", "ada", "log"]
    assert membership.connections_of(["ada", "ghost", "bob"]) == (9, 1, 2, 3)
    assert membership.connections_of(["log"]) == (4,)
    assert membership.connections_of([]) == ()


def test_participants_have_their_own_capabilities_or_the_defaults(membership: Membership) -> None:
    coder, twin = membership.permissions_of("coder"), membership.permissions_of("twin")
    assert coder.patterns == (CHAT, BASELINE)
    assert twin.patterns == membership.permissions_of("stranger").patterns == ({"kind": "chat/acknowledge"}, BASELINE)
    assert json.loads(coder.patterns_json) == [CHAT, BASELINE]
    assert (membership.permissions_of("ada").several_connections, coder.several_connections) == (True, False)


def test_a_granted_capability_is_reported_as_dynamic(membership: Membership) -> None:
    membership.grant("coder", CapabilityGrant(names=frozenset({"g"}), granter="ada", patterns=(CALL,), through=((),)))
    permissions = membership.permissions_of("coder")
    assert permissions.patterns == (CHAT, CALL, BASELINE)
    by_grant = permissions.decide(Draft(kind="mcp/request", payload={"n": 1}), ignore_to=False)
    assert (by_grant.matched, by_grant.source) == (CALL, "dynamic")
    assert permissions.decide(HELLO, ignore_to=False).source == "static"
    assert permissions.decide(Draft(kind="x"), ignore_to=False)[1:] == (None, None)


def test_grants_accumulate(granted: Membership) -> None:
    assert granted.permissions_of("coder").granted == (CHAT, CALL, CHAT)


@pytest.mark.parametrize("name", ["g1", "mine"])
def test_a_grant_is_revoked_by_any_of_its_names(granted: Membership, name: str) -> None:
    revoked = patterns_of(granted.revoke("coder", grant_id=name))
    assert revoked == (CHAT, CALL)
    assert granted.permissions_of("coder").granted == (CHAT,)


def test_a_revocation_by_pattern_takes_all_that_it_covers(granted: Membership) -> None:
    revoked = patterns_of(granted.revoke("coder", grant_id=None, patterns=[{"kind": "mcp/*"}]))
    assert [one["kind"] for one in revoked] == ["mcp/request"]
    revoked = patterns_of(granted.revoke("coder", grant_id=None, patterns=[{"kind": "*"}]))
    assert [one["kind"] for one in revoked] == ["chat", "chat"]


def test_a_revocation_leaves_patterns_that_it_does_not_cover(granted: Membership) -> None:
    similar: list[dict[str, Any]] = [{"kind": "mcp/request", "payload": {"n": True}}, {"kind": "mcp"}]
    assert granted.revoke("coder", grant_id=None, patterns=similar) == ((), ())
    assert patterns_of(granted.revoke("coder", grant_id=None, patterns=[CHAT])) == (CHAT, CHAT)
    assert granted.permissions_of("coder").granted == (CALL,)
    same = {"payload": {"n": 1.0}, "kind": "mcp/request"}
    assert patterns_of(granted.revoke("coder", grant_id=None, patterns=[same])) == (CALL,)
    assert granted.permissions_of("coder").granted == ()


def test_revoking_an_unknown_grant_changes_nothing(granted: Membership) -> None:
    assert granted.revoke("coder", grant_id="other") == granted.revoke("eve", grant_id="g1") == ((), ())
    assert granted.permissions_of("coder").granted == (CHAT, CALL, CHAT)


def test_dropping_grants_keeps_configured_capabilities(granted: Membership) -> None:
    assert granted.drop_grants(["coder"])
    assert granted.drop_grants(["coder"]) == ()
    assert granted.permissions_of("coder").patterns == (CHAT, BASELINE)


def test_an_invitation_adds_and_a_removal_removes_a_participant(membership: Membership) -> None:
    assert not membership.has("eve")
    membership.invite("eve", INVITATION)
    assert membership.permissions_of("eve").patterns == (CALL, BASELINE)
    assert membership.names == ("ada", "coder", "twin", "eve")
    membership.grant("eve", CapabilityGrant(names=frozenset({"g"}), granter="ada", patterns=(CHAT,), through=((),)))
    membership.pause(["eve"], Pause(), "pause", now=NOW)
    membership.shut_down(["eve"])
    membership.remove("eve")
    assert membership.permissions_of("eve").patterns == (BASELINE,)
    assert not membership.has("eve")
    assert membership.state == SpaceState(removed={"eve"})


def test_a_removed_participant_can_be_invited_back_with_less(membership: Membership) -> None:
    membership.remove("ada")
    assert (membership.has("ada"), membership.names) == (False, ("coder", "twin"))
    assert membership.permissions_of("ada").patterns == (BASELINE,)
    membership.invite("ada", INVITATION)
    assert (membership.has("ada"), membership.permissions_of("ada").patterns) == (True, (CALL, BASELINE))


def test_a_later_space_yaml_overrides_an_invitation() -> None:
    state = SpaceState()
    before = LiveMembership(parse_space("space: {id: demo}"), state)
    before.invite("coder", INVITATION)
    assert before.permissions_of("coder").patterns == (CALL, BASELINE)
    after = LiveMembership(parse_space(SPACE), state)
    assert after.permissions_of("coder").patterns == (CHAT, BASELINE)
    assert after.names == ("ada", "coder", "twin")


def test_an_invited_person_may_hold_several_connections(membership: Membership) -> None:
    membership.invite("eve", INVITATION.model_copy(update={"several_sockets": True}))
    membership.invite("robot", INVITATION)
    assert membership.permissions_of("eve").several_connections
    assert not membership.permissions_of("robot").several_connections


def test_a_display_name_resolves_when_it_is_unique(membership: Membership) -> None:
    assert (membership.resolve("ada"), membership.resolve("Ada")) == ("ada", "ada")
    assert membership.resolve("Coder") is None
    membership.remove("twin")
    assert membership.resolve("Coder") == "coder"
    assert membership.resolve("nobody") is None


@pytest.mark.parametrize("kind", sorted(kinds.ALLOWED_WHILE_PAUSED))
def test_a_paused_participant_may_send_acknowledgements_and_endings(membership: Membership, kind: str) -> None:
    membership.pause(["coder"], Pause(), "pause", now=NOW)
    assert membership.silenced_because(Draft(kind=kind), "coder", now=NOW) is None
    assert "paused" in (membership.silenced_because(HELLO, "coder", now=NOW) or "")


def test_a_second_pause_replaces_the_first(membership: Membership) -> None:
    for seconds in (5, 10):
        membership.pause(["coder"], Pause(timeout_seconds=seconds), "pause", now=NOW)
    assert membership.silenced_because(HELLO, "coder", now=NOW + timedelta(seconds=9))
    assert membership.silenced_because(HELLO, "coder", now=NOW + timedelta(seconds=10)) is None


def test_pauses_expire_after_their_timeout(membership: Membership) -> None:
    membership.pause(["coder"], Pause(timeout_seconds=5), "pause", now=NOW)
    membership.pause(["twin"], Pause(), "pause", now=NOW)
    assert membership.expired_pauses(now=NOW + timedelta(seconds=4)) == {}
    assert list(membership.expired_pauses(now=NOW + timedelta(seconds=5))) == ["coder"]


def test_a_pause_may_be_longer_than_the_calendar(membership: Membership) -> None:
    membership.pause(["coder"], Pause(timeout_seconds=1e300), "pause", now=NOW)
    assert membership.silenced_because(HELLO, "coder", now=NOW + timedelta(days=365))


def test_a_pause_reports_its_remaining_time(membership: Membership) -> None:
    assert membership.pause_of("coder", now=NOW) is None
    membership.pause(["coder"], Pause(reason="later"), "pause", now=NOW)
    assert membership.pause_of("coder", now=NOW + timedelta(days=1)) == Pause(reason="later")
    membership.pause(["coder"], Pause(timeout_seconds=5), "pause", now=NOW)
    assert membership.pause_of("coder", now=NOW + timedelta(seconds=2)) == Pause(timeout_seconds=3)
    assert membership.pause_of("coder", now=NOW + timedelta(seconds=5)) is None


def test_a_shutdown_silences_until_it_ends(membership: Membership) -> None:
    membership.shut_down(["coder"])
    assert "shut down" in (membership.silenced_because(HELLO, "coder", now=NOW) or "")
    assert membership.silenced_because(Draft(kind=kinds.PARTICIPANT_STATUS), "coder", now=NOW) is None
    membership.end_shutdown("coder")
    assert membership.silenced_because(HELLO, "coder", now=NOW) is None


def proposal(name: str, proposer: str) -> Envelope:
    return Envelope.write("mcp/proposal", id=name, ts="t", sender=proposer, payload={"method": "tools/list"})


def withdrawal(sender: str, *about: str) -> Envelope:
    return Envelope.write("mcp/withdraw", id="w", ts="t", sender=sender, correlation_id=about)


def test_an_unknown_proposal_has_no_owner(membership: Membership) -> None:
    membership.proposals.add(proposal("p1", "coder"), now=NOW)
    assert membership.proposals.foreign_to(withdrawal("coder", "p1")) is None
    assert membership.proposals.foreign_to(withdrawal("bob", "unknown", "p1")) == "p1"
    assert membership.proposals.foreign_to(withdrawal("bob", "unknown")) is None


def test_the_participant_with_most_proposals_loses_its_oldest(
    membership: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals_module, "MAX_PROPOSALS", 4)
    for number, name in enumerate(("bob", "coder", "coder", "coder", "coder", "twin")):
        membership.proposals.add(proposal(f"{number}", name), now=NOW)
    assert list(membership.state.proposals) == ["0", "3", "4", "5"]


def test_too_many_proposals_of_one_participant_have_to_wait(
    membership: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals_module, "MAX_PROPOSALS_OF_ONE", 2)
    for number in range(2):
        membership.proposals.add(proposal(f"{number}", "coder"), now=NOW)
    third = proposal("2", "coder")
    problem = membership.proposals.problem_of(third, now=NOW + timedelta(minutes=9))
    assert problem == ("limit_exceeded", "'coder' made 2 proposals within 10 minutes; wait")
    assert membership.proposals.problem_of(proposal("2", "bob"), now=NOW) is None
    later = NOW + timedelta(minutes=10)
    assert membership.proposals.problem_of(third, now=later) is None
    membership.proposals.add(third, now=later)
    assert list(membership.state.proposals) == ["1", "2"]


@pytest.mark.parametrize(
    ("earlier", "name", "short"),
    [
        ((), "3f2a9c1b-77", "3f2a9c1b"),
        (("3f2a9c1b-77",), "3f2a9c1b-7x", "3f2a9c1b-7x"),
        (("3f2a9c1b-77",), "3f2a9c1b-evil", "3f2a9c1b-e"),
        (("3f2a9c1b-77",), "3f2a9c1b", None),
        (("p-10",), "p-1", "p-1"),
        (("p-1",), "p-10", "p-10"),
    ],
)
def test_the_beginning_of_an_id_never_names_a_later_proposal(
    membership: Membership, earlier: tuple[str, ...], name: str, short: str | None
) -> None:
    for one in earlier:
        membership.proposals.add(proposal(one, "coder"), now=NOW)
    new = proposal(name, "bob")
    problem = membership.proposals.problem_of(new, now=NOW)
    assert (problem is None) == (short is not None)
    if short is not None:
        membership.proposals.add(new, now=NOW)
        assert membership.state.proposals[name].short_id == short


def test_a_new_id_is_compared_with_its_neighbours_alone(
    membership: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_chars = proposals_module._shared_chars
    compare = Mock(side_effect=shared_chars)
    monkeypatch.setattr(proposals_module, "_shared_chars", compare)
    numbers = Random(1)
    for _ in range(300):
        name = numbers.choice(("", "aaaaaaaa")) + "".join(numbers.choices("ab", k=numbers.randint(1, 9)))
        known = list(membership.state.proposals)
        shared = max((shared_chars(name, one) for one in known), default=0)
        is_taken = shared == len(name) >= KEPT_SHORT or name in known
        assert (membership.proposals.problem_of(proposal(name, "coder"), now=NOW) is not None) == is_taken
        if is_taken:
            membership.apply(Change("proposals", numbers.choice(known)))
        else:
            membership.proposals.add(proposal(name, "coder"), now=NOW)
            short = membership.state.proposals[name].short_id or ""
            assert short == name[: max(KEPT_SHORT, shared + 1)]
            assert len(short) < KEPT_SHORT or not any(one.startswith(short) for one in known)
    assert compare.call_count <= 300 * 2 * 2
