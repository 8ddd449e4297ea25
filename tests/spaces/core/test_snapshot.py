"""A space at one moment."""

from datetime import UTC, datetime

from mew_protocol.payloads.participant import BoardEntry, Status
from mew_spaces.core.snapshot import MemberView, Snapshot

AT = datetime(2026, 1, 1, tzinfo=UTC)
SNAPSHOT = Snapshot(
    space="demo",
    name="Demo",
    at=AT,
    participants=(
        MemberView("ada", connected=True, capabilities=({"kind": "*"},)),
        MemberView("coder", connected=True, capabilities=({"kind": "chat", "payload": {"n": None}},)),
        MemberView("bob", connected=False, capabilities=()),
    ),
    active_streams=(),
    board=(
        BoardEntry(id="ada", connected=True),
        BoardEntry(id="coder", connected=True, status=Status(messages_in_context=1)),
    ),
)


def test_a_welcome_names_the_others_who_are_here_and_the_statuses_there_are() -> None:
    welcome = SNAPSHOT.welcome("ada", ({"kind": "*"},))
    assert welcome["you"] == {"id": "ada", "capabilities": [{"kind": "*"}]}
    assert welcome["participants"] == [{"id": "coder", "capabilities": [{"kind": "chat", "payload": {"n": None}}]}]
    assert welcome["board"] == [{"id": "coder", "connected": True, "status": {"messages_in_context": 1}}]


def test_a_board_has_a_line_for_everybody() -> None:
    board = SNAPSHOT.as_board()
    assert (board.space, board.name, board.at) == ("demo", "Demo", "2026-01-01T00:00:00.000Z")
    assert [entry.id for entry in board.participants] == ["ada", "coder"]
