"""Invitations and removals undo each other."""

from mew_spaces.core.roster import Invited, Roster

PLACE = Invited(capabilities=({"kind": "chat"},), invited_by="ada", invited_at="2026-01-01T00:00:00.000Z")


def test_an_invitation_makes_a_place_and_lifts_a_removal() -> None:
    roster = Roster(removed=frozenset({"eve", "mallory"})).with_invited("eve", PLACE)
    assert roster == Roster(invited={"eve": PLACE}, removed=frozenset({"mallory"}))


def test_a_removal_ends_an_invitation() -> None:
    roster = Roster().with_invited("eve", PLACE).without("eve").without("coder")
    assert roster == Roster(removed=frozenset({"eve", "coder"}))


def test_an_invitation_counts_where_space_yaml_is_silent_or_was_overruled() -> None:
    roster = Roster().with_invited("eve", PLACE)
    assert roster.place_of("eve", is_configured=False) == PLACE
    assert roster.place_of("eve", is_configured=True) is None
    overruling = PLACE.model_copy(update={"above_configured": True})
    assert roster.with_invited("eve", overruling).place_of("eve", is_configured=True) == overruling
    assert roster.place_of("bob", is_configured=False) is None
