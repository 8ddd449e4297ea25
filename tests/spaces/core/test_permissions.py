"""What everybody may: files, invitations, removals and grants together."""

import json

import pytest
from mew_protocol.capability import BASELINE
from mew_protocol.envelope import Draft
from mew_spaces.config.loading import parse_space
from mew_spaces.core.grants import Grant
from mew_spaces.core.permissions import Seats
from mew_spaces.core.roster import Invited, Roster

CHAT, CALL = {"kind": "chat"}, {"kind": "mcp/request"}
SPACE = """
space: {id: demo}
participants:
  ada: {name: Ada, capabilities: [{kind: "*"}]}
  coder: {name: Coder, command: mew, capabilities: [{kind: chat}]}
  twin: {name: Coder, command: mew}
defaults: {capabilities: [{kind: chat/acknowledge}]}
"""
PLACE = Invited(capabilities=(CALL,), invited_by="ada", invited_at="now")


@pytest.fixture
def seats() -> Seats:
    return Seats(parse_space(SPACE), Roster())


def test_a_seat_has_the_participants_own_list_else_the_defaults(seats: Seats) -> None:
    assert seats.of("coder").patterns == (CHAT, BASELINE)
    assert seats.of("twin").patterns == seats.of("stranger").patterns == ({"kind": "chat/acknowledge"}, BASELINE)
    assert (seats.of("ada").several_connections, seats.of("coder").several_connections) == (True, False)
    assert json.loads(seats.of("coder").patterns_json) == [CHAT, BASELINE]


def test_a_grant_adds_to_a_seat_and_is_known_as_one(seats: Seats) -> None:
    seats.grant("coder", Grant(frozenset({"g"}), "ada", (CALL,)))
    seat = seats.of("coder")
    assert seat.patterns == (CHAT, CALL, BASELINE)
    matched = seat.capabilities.match(Draft(kind="mcp/request"))
    assert matched is not None
    assert (seat.source_of(matched), seat.source_of(CHAT)) == ("dynamic", "static")
    assert seats.revoke("coder", grant_id="g", patterns=()) == [CALL]
    assert seats.of("coder").patterns == (CHAT, BASELINE)


def test_grants_can_be_forgotten(seats: Seats) -> None:
    seats.grant("coder", Grant(frozenset({"g"}), "ada", (CALL,)))
    assert seats.of("coder").granted
    seats.forget_grants("coder")
    assert not seats.of("coder").granted


def test_an_invitation_makes_a_seat_and_a_removal_takes_it_with_every_grant(seats: Seats) -> None:
    assert not seats.has("eve")
    roster = seats.invite("eve", PLACE)
    assert roster.invited == {"eve": PLACE}
    assert seats.of("eve").patterns == (CALL, BASELINE)
    assert seats.names == ("ada", "coder", "twin", "eve")
    seats.grant("eve", Grant(frozenset({"g"}), "ada", (CHAT,)))
    seats.remove("eve")
    assert seats.of("eve").patterns == (BASELINE,)
    assert not seats.has("eve")


def test_a_configured_participant_can_be_removed_and_invited_back_with_less(seats: Seats) -> None:
    seats.remove("ada")
    assert (seats.has("ada"), seats.names, seats.of("ada").patterns) == (False, ("coder", "twin"), (BASELINE,))
    seats.invite("ada", PLACE)
    assert (seats.has("ada"), seats.of("ada").patterns) == (True, (CALL, BASELINE))


def test_what_space_yaml_says_later_stands_above_an_invitation() -> None:
    before = Seats(parse_space("space: {id: demo}"), Roster())
    roster = before.invite("coder", PLACE)
    assert (before.of("coder").patterns, before.of("coder").several_connections) == ((CALL, BASELINE), False)
    after = Seats(parse_space(SPACE), roster)
    assert after.of("coder").patterns == (CHAT, BASELINE)
    assert after.names == ("ada", "coder", "twin")


def test_a_person_who_was_invited_may_hold_several_connections(seats: Seats) -> None:
    seats.invite("eve", PLACE.model_copy(update={"several_sockets": True}))
    seats.invite("robot", PLACE)
    assert (seats.of("eve").several_connections, seats.of("robot").several_connections) == (True, False)


def test_names_for_display_mean_their_participant_when_only_one_has_them(seats: Seats) -> None:
    assert (seats.resolve("ada"), seats.resolve("Ada")) == ("ada", "ada")
    assert seats.resolve("Coder") is None
    seats.remove("twin")
    assert seats.resolve("Coder") == "coder"
    assert seats.resolve("nobody") is None
