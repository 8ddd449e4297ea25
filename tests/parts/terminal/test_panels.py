"""What the panels of the terminal application show, as text."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mew_board.view import ParticipantView, views_of
from mew_protocol.payloads.attention_items import AttentionItem
from mew_protocol.payloads.context_history import ParticipantFigures
from mew_protocol.payloads.participant import Board, BoardEntry

from mew_agent.cli.board.table import TerminalStyle
from mew_agent.parts.terminal.panels import (
    Line,
    ParticipantDetails,
    attention_line,
    details,
    glance,
    matching,
    row,
    sparkline,
)

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
STYLE = TerminalStyle()


def entry(name: str, tokens: int | None = 500, *, status: str = "active", **report: Any) -> BoardEntry:
    context = {"basis": "reported", "max_tokens_basis": "configured", "level": "healthy", "severity": 0, **report}
    values = {"status": status, "messages_in_context": 3, "max_tokens": 1000, "context": context}
    return BoardEntry.model_validate(
        {"id": name, "connected": True, "status": values if tokens is None else {**values, "tokens": tokens}}
    )


def view(shown: BoardEntry, *items: AttentionItem) -> ParticipantView:
    return ParticipantView(shown, NOW, items=items)


def need(participant: str) -> AttentionItem:
    kind, level = "model_unreachable", "blocking"
    return AttentionItem(id="x", kind=kind, level=level, participant=participant, reason="no model")


def texts(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (entry("coder", compact_at_tokens=900), ["  coder         █████░░░░┃  50%", "  500 of 1,000 reported"]),
        (entry("coder", basis="projected"), ["  coder         ▒▒▒▒▒░░░░░ ~50%", "  ~500 of 1,000 projected"]),
        (
            entry("coder", None, basis="unknown", reason="compacted"),
            ["  coder         compacted, no …", "  ? of 1,000 unknown"],
        ),
        (entry("coder", status="paused"), ["  coder         █████░░░░░  50%", "  500 of 1,000 reported · paused"]),
        (entry("助理代理程序"), ["  助理代理程序  █████░░░░░  50%", "  500 of 1,000 reported"]),
        (BoardEntry(id="ada\x1b[31m", connected=False), ["  ada[31m       not connected"]),
    ],
    ids=["reported", "projected", "unknown", "paused", "wide name", "no context"],
)
def test_a_row_shows_the_figure_and_how_it_is_known(shown: BoardEntry, expected: list[str]) -> None:
    assert [one.rstrip() for one in texts(row(view(shown), width=32, is_tall=True, style=STYLE))] == expected


def test_a_figure_one_turn_before_a_compaction_is_not_calm() -> None:
    (first, _) = row(view(entry("coder", 830, turns_to_compaction=1)), width=32, is_tall=True, style=STYLE)
    assert first[-1] == ("  83%", "warn")
    (first, _) = row(view(entry("coder", 830), need("coder")), width=32, is_tall=True, style=STYLE)
    assert first[0] == ("! ", "alarm")


def test_participants_that_need_a_person_come_first_then_the_fullest() -> None:
    board = Board(
        space="s",
        at="2026-01-01T00:00:00Z",
        participants=(BoardEntry(id="ada", connected=True), entry("low", 100), entry("full", 900), entry("stuck", 50)),
    )
    assert [one.entry.id for one in views_of(board, now=NOW, items=[need("stuck")])] == ["stuck", "full", "low", "ada"]
    assert [one.entry.id for one in matching(views_of(board, now=NOW), "LOW")] == ["low"]


def test_totals_are_shown_from_five_agents_on() -> None:
    def shown(number: int) -> str:
        entries = [entry(f"agent-{at}") for at in range(number)]
        line = glance(views_of(Board(space="review", at="", participants=tuple(entries)), now=NOW), 60, STYLE)
        return "" if line is None else line[0][0]

    assert shown(4) == ""
    assert shown(5) == "5 agents · 2,500 of 5,000 tokens in use"


def test_an_item_shows_its_reason_and_age_within_the_width() -> None:
    since = (NOW - timedelta(seconds=12)).isoformat()
    item = AttentionItem(id="x", kind="approval", level="blocking", reason="coder waits " * 9, since=since)
    (line,) = texts([attention_line(item, NOW, 40)])
    assert line.endswith("…, 12 s")
    assert len(line) == 40


def test_the_sparkline_has_a_time_axis_and_marks_compactions() -> None:
    def at(minutes: int) -> str:
        return (NOW - timedelta(minutes=minutes)).isoformat()

    figures = ParticipantFigures.model_validate(
        {
            "id": "coder",
            "samples": [
                {"at": at(49), "tokens": 100, "max_tokens": 1000, "basis": "reported"},
                {"at": at(29), "tokens": 950, "max_tokens": 1000, "basis": "reported"},
                {"at": at(9), "basis": "unknown"},
            ],
            "compactions": [{"at": at(19), "trigger": "requested", "asked_by": "ada", "freed_tokens": 700}],
        }
    )
    assert sparkline(figures, now=NOW, width=6, style=STYLE) == " ▁▁█╎ "
    shown = texts(details(ParticipantDetails(entry("coder"), figures), now=NOW, width=38, style=STYLE))
    assert shown[-1] == "11:41 requested by ada, freed 700"
    assert "500 of 1,000 tokens" in shown
