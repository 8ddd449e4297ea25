"""Who is here, by which connections."""

from mew_protocol.ids import ParticipantId
from mew_spaces.core.effects import ConnectionId
from mew_spaces.core.members import Member, Members


def test_members_stand_in_the_order_of_their_joining_and_are_reached_by_all_their_connections() -> None:
    members = Members()
    members[ParticipantId("bob")] = Member([ConnectionId(3)])
    members[ParticipantId("ada")] = Member([ConnectionId(1), ConnectionId(2)], virtual=ConnectionId(9))
    members[ParticipantId("log")] = Member(virtual=ConnectionId(4))
    assert list(members) == ["bob", "ada", "log"]
    assert members.connections_of(["ada", "ghost", "bob"]) == (9, 1, 2, 3)
    assert members.connections_of(["log"]) == (4,)
    assert members.connections_of([]) == ()
