"""What needs a person, as text above the board."""

from datetime import UTC, datetime

import pytest
from mew_board.words import cells
from mew_protocol.payloads.attention_items import AttentionAction, AttentionItem
from mew_protocol.payloads.participant import Board, BoardEntry

from mew_agent.cli.board.needs import attention_lines, with_faults
from mew_agent.cli.board.table import TerminalStyle, board_lines

NOW = datetime(2026, 1, 1, 12, 0, 12, tzinfo=UTC)
APPROVAL = AttentionItem(
    id="approval:coder:7f3a",
    kind="approval",
    level="blocking",
    participant="coder",
    reason='coder waits for approval of write_file on files: {"path": "src/greeting.txt"}',
    since="2026-01-01T12:00:00Z",
    actions=(
        AttentionAction(label="Approve", command="mew approve 7f3a"),
        AttentionAction(label="Reject", command="mew reject 7f3a"),
    ),
)
SOON = AttentionItem(
    id="about_to_compact:writer",
    kind="about_to_compact",
    level="notice",
    participant="writer",
    reason="writer compacts automatically in its next turn, at 29,491 tokens",
)
GONE = AttentionItem(
    id="disconnected:files", kind="disconnected", level="warning", participant="files", reason="files has not joined"
)


def test_lines_fit_eighty_columns() -> None:
    lines = attention_lines((APPROVAL, SOON), now=NOW, style=TerminalStyle(width=80))
    assert lines == [
        'NEEDS YOU   coder waits for approval of write_file on files: {"path":',
        '            "src/greeting.txt"}, 12 s   mew approve 7f3a   mew reject 7f3a',
        "SOON        writer compacts automatically in its next turn, at 29,491 tokens",
    ]


def test_in_sixty_columns_titles_have_their_own_line() -> None:
    lines = attention_lines((APPROVAL, SOON), now=NOW, style=TerminalStyle(width=60))
    assert lines == [
        "NEEDS YOU",
        '  coder waits for approval of write_file on files: {"path":',
        '  "src/greeting.txt"}, 12 s   mew approve 7f3a',
        "  mew reject 7f3a",
        "SOON",
        "  writer compacts automatically in its next turn, at 29,491",
        "  tokens",
    ]


@pytest.mark.parametrize("width", [12, 20, 40, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    style = TerminalStyle(width=width)
    evil = APPROVAL.model_copy(update={"reason": "猫" * 90 + "\x1b[31m evil"})
    lines = attention_lines((evil, SOON), now=NOW, style=style)
    assert max(map(cells, lines)) <= width
    assert "\x1b" not in "".join(lines)


def test_a_fault_replaces_that_a_participant_is_not_connected() -> None:
    board = Board(space="a", at="", participants=(BoardEntry(id="files", connected=False),))
    (found,) = with_faults((GONE,), board, {"files": "exited with code 3: no such file"}, now=NOW)
    assert (found.kind, found.reason) == ("program_ended", "files: exited with code 3: no such file")


def test_trouble_comes_first_and_is_never_green() -> None:
    status = {"messages_in_context": 1, "tokens": 10, "max_tokens": 100}
    calm = {"basis": "reported", "level": "healthy", "severity": 0}
    entries = [{"id": name, "connected": True, "status": {**status, "context": calm}} for name in ("writer", "coder")]
    board = Board.model_validate({"space": "a", "at": "", "participants": entries})
    style = TerminalStyle(width=120, colour=True)
    _, _, first, second = board_lines(board, now=NOW, style=style, items=(APPROVAL, SOON))
    assert first.startswith("coder")
    assert "\x1b[1;31m" in first
    assert second.startswith("writer")
    assert "\x1b[33m" in second
