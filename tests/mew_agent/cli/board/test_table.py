"""The board as text: no line wider than the terminal, no unknown figure shown as a number."""

import re
import unicodedata
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_board.board_json import Grouping
from mew_board.words import cells
from mew_protocol.payloads.participant import Board

from mew_agent.cli.board.table import TerminalStyle, board_line, board_lines

NOW = datetime(2026, 1, 1, 14, 2, 11, tzinfo=UTC)


def report(**more: Any) -> dict[str, Any]:
    return {"basis": "reported", "max_tokens_basis": "configured", "level": "healthy", "severity": 0, **more}


def entry(name: str, *, connected: bool = True, at: str = "2026-01-01T14:02:00Z", **status: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"id": name, "connected": connected}
    if status:
        found |= {"status": {"messages_in_context": 3, **status}, "received_at": at}
    return found


CODER = entry(
    "coder",
    tokens=98_412,
    max_tokens=128_000,
    context=report(next_prompt_tokens=99_107, next_prompt_basis="server_counted", turns_to_compaction=5),
)
WRITER = entry(
    "writer",
    tokens=6_731,
    max_tokens=32_768,
    context=report(
        basis="projected",
        next_prompt_tokens=6_731,
        next_prompt_basis="projected",
        turns_to_compaction=1,
        last_compaction={
            "at": "2026-01-01T14:00:01Z",
            "trigger": "threshold",
            "freed_tokens": 23_020,
            "freed_gross_tokens": 24_000,
            "summary_tokens": 980,
            "freed_messages": 40,
            "basis": "reported",
        },
    ),
)
LOCAL = entry(
    "local-llm",
    max_tokens=8_192,
    context={
        "basis": "unknown",
        "reason": "usage_unavailable",
        "next_prompt_tokens": 812,
        "next_prompt_basis": "heuristic",
    },
)
HOT = entry(
    "hot",
    connected=False,
    at="2026-01-01T13:00:00Z",
    tokens=120_000,
    max_tokens=128_000,
    status="model_unreachable",
    context=report(level="near_limit", severity=2, stale_messages=2),
)
PERSON = entry("ada")
ROOM = (PERSON, CODER, WRITER, LOCAL, HOT)


def board(*entries: dict[str, Any]) -> Board:
    return Board.model_validate({"space": "review", "at": "2026-01-01T14:02:11Z", "participants": entries})


def shown(*entries: dict[str, Any], width: int = 200, **more: Any) -> str:
    return "\n".join(board_lines(board(*entries), now=NOW, style=TerminalStyle(width=width), **more))


def row(name: str, text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


def test_reported_figure_shows_window_share_and_basis() -> None:
    assert re.fullmatch(
        r"coder +98,412 of 128,000 +█{15}░{5}  77% +reported +99,107 +~5 turns +-", row("coder", shown(CODER))
    )


def test_estimate_shows_a_tilde_and_a_hatched_bar() -> None:
    line = row("writer", shown(WRITER))
    assert "~6,731 of 32,768" in line
    assert "▒▒▒▒░" in line
    assert "projected" in line
    assert "~1 turn " in line
    assert "2 min ago, freed 23,020" in line


def test_unknown_figure_shows_a_question_mark_and_its_reason() -> None:
    line = row("local-llm", shown(LOCAL))
    assert re.fullmatch(r"local-llm +\? of 8,192 +no usage reported +unknown +~812 +- +-", line)
    assert "0%" not in line


def test_last_report_stays_visible_while_the_figure_is_unknown() -> None:
    last = {"tokens": 4_321, "measured_at": "2026-01-01T13:00:00Z", "call_id": "c1"}
    line = row("x", shown(entry("x", context={"basis": "unknown", "reason": "restarted", "last_reported": last})))
    assert "restarted, was 4,321" in line
    assert "? of ?" in line


def test_a_gauge_of_the_last_report_is_drawn_as_a_line() -> None:
    last = {"tokens": 4_096, "measured_at": "2026-01-01T13:00:00Z", "call_id": "c1"}
    known = {"basis": "unknown", "reason": "restarted", "last_reported": last, "next_prompt_tokens": 4_100}
    known |= {"next_prompt_basis": "projected", "max_tokens_basis": "loaded"}
    line = row("x", shown(entry("x", max_tokens=8_192, context=known)))
    assert re.search(r"\? of 8,192 +┄{10}░{10} restarted, was 4,096 .*unknown +~4,100", line)
    assert "%" not in line
    cleared = row("x", shown(entry("x", max_tokens=8_192, context={**known, "reason": "cleared"})))
    assert "┄" not in cleared


def test_assumed_window_is_shown_as_an_estimate() -> None:
    text = shown(entry("x", tokens=10, max_tokens=128_000, context=report(max_tokens_basis="assumed")))
    assert "10 of ~128,000" in text


def test_estimate_is_not_called_reported() -> None:
    line = row("ts", shown(entry("ts", tokens=500, max_tokens=20_000)))
    assert "~500 of ~20,000" in line
    assert "estimate" in line


def test_severity_is_shown_in_words_and_colour() -> None:
    text = shown(HOT)
    for words in ("not connected, last report 1 h ago", "model unreachable", "near limit", "+2 items since"):
        assert words in text


def test_crashed_program_gets_a_row_without_a_report() -> None:
    text = shown(PERSON, ended={"ada": "exited with code 1"})
    assert "ada" in row("ada", text)
    assert "exited with code 1" in text


def test_people_are_counted_but_get_no_row() -> None:
    text = shown(PERSON, CODER)
    assert text.splitlines()[0] == "review · 2 members · 14:02:11"
    assert "ada" not in text


def test_agent_without_a_report_gets_a_row_without_figures() -> None:
    line = row("coder", shown(entry("coder"), launched=["coder"], agents={"coder"}))
    assert "? of ?" in line
    assert "nothing reported" in line


FILES = entry("files", messages_in_context=0, status="active")


@pytest.mark.parametrize("tool", [entry("files"), FILES])
def test_tool_is_listed_below_agents_without_figures(tool: dict[str, Any]) -> None:
    lines = shown(tool, CODER, launched=["files"]).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["coder", "files"]
    assert re.fullmatch(r"files +- +reports no context +- +- +- +-", lines[3])


def test_rows_come_in_the_order_of_the_views() -> None:
    lines = shown(LOCAL, entry("files"), CODER, WRITER, launched=["files", "coder", "writer"]).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["writer", "coder", "local-llm", "files"]


def test_two_rows_of_nearly_the_same_share_come_by_name() -> None:
    rows = [entry(name, tokens=tokens, max_tokens=1_000, context=report()) for name, tokens in (("b", 480), ("a", 410))]
    lines = shown(*rows, launched=["b", "a"]).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["a", "b"]


@pytest.mark.parametrize("width", range(30, 130, 5))
def test_fault_of_a_tool_is_shown_at_any_width(width: int) -> None:
    lines = shown(FILES, CODER, width=width, ended={"files": "exited with code 1"}).splitlines()
    assert max(map(cells, lines)) <= width
    assert "?" not in "".join(lines)
    assert any("exited with code 1" in line for line in lines)


def test_board_without_reports_says_so() -> None:
    assert shown(PERSON).splitlines()[1] == "no participant has reported a context window yet"


def test_heading_counts_connected_members() -> None:
    assert shown(CODER, HOT).startswith("review · 1 of 2 members · ")


def test_running_compaction_replaces_the_forecast() -> None:
    status = {**CODER["status"], "status": "compacting"}
    line = row("coder", shown({**CODER, "status": status}))
    assert " now " in line
    assert line.endswith("compacting")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 160])
def test_basis_is_shown_at_every_width(width: int) -> None:
    text = shown(*ROOM, width=width)
    for name, basis in (("coder", "reported"), ("writer", "projected"), ("local-llm", "unknown"), ("hot", "reported")):
        assert basis in row(name, text)
    assert "98,412" in row("coder", text)
    assert "model unreachable" in text
    assert "no usage reported" in text


def test_narrow_terminals_drop_columns_in_order() -> None:
    titles = {width: " ".join(shown(*ROOM, width=width).splitlines()[1].split()) for width in (160, 80, 60, 40)}
    assert titles[160] == "PARTICIPANT TOKENS WINDOW KNOWN NEXT CALL COMPACTS IN LAST COMPACTION"
    assert titles[80] == "PARTICIPANT TOKENS WINDOW KNOWN COMPACTS IN"
    assert titles[60] == titles[40] == "PARTICIPANT TOKENS FULL KNOWN"


def test_colour_surrounds_cells_and_never_counts_as_width() -> None:
    plain = board_lines(board(*ROOM), now=NOW, style=TerminalStyle(width=120))
    painted = board_lines(board(*ROOM), now=NOW, style=TerminalStyle(width=120, colour=True))
    assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in painted] == plain
    assert "\x1b[1;33m" in "".join(painted)
    assert "\x1b" not in "".join(plain)


def test_drawing_is_ascii_without_unicode() -> None:
    for width in (160, 40):
        lines = board_lines(board(*ROOM), now=NOW, style=TerminalStyle(width=width, unicode=False))
        assert all(line.isascii() for line in lines)


def test_wire_text_cannot_control_the_terminal() -> None:
    evil = entry("a\x1b[2Jb\u202e", tokens=1, max_tokens=10, status="x\x1b]0;y\x07\nz", context=report())
    text = "\n".join(board_lines(board(evil), now=NOW, style=TerminalStyle(width=160)))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert len(text.splitlines()) == 3


def test_wide_characters_count_as_two_columns() -> None:
    lines = board_lines(
        board(entry("猫猫猫", tokens=1, max_tokens=10, context=report())), now=NOW, style=TerminalStyle(width=160)
    )
    assert cells(lines[2][: lines[2].index("of")]) == lines[1].index("TOKENS") + len("TOKENS") - len("of 10")


names = st.text(min_size=1, max_size=40)
counts = st.integers(min_value=0, max_value=10**9)


@given(
    width=st.integers(min_value=1, max_value=200),
    people=st.lists(
        st.tuples(names, st.booleans(), st.none() | counts, st.none() | counts.filter(bool), st.none() | names),
        max_size=4,
    ),
)
def test_no_line_is_wider_than_the_terminal(
    width: int, people: list[tuple[str, bool, int | None, int | None, str | None]]
) -> None:
    found = board(
        *(
            entry(name, connected=connected, tokens=tokens, max_tokens=limit, status=status)
            for name, connected, tokens, limit, status in people
        )
    )
    for line in board_lines(found, now=NOW, style=TerminalStyle(width=width)):
        assert cells(line) <= width
        assert not {unicodedata.category(one) for one in line} & {"Cc", "Cf", "Cs"}


def test_board_line_holds_time_figure_basis_and_remarks() -> None:
    found = board(HOT, LOCAL)
    assert board_line(found.participants[0], now=NOW) == (
        "14:02:11  hot  120,000 of 128,000  94% reported"
        "  (not connected, last report 1 h ago, model unreachable, near limit, +2 items since)"
    )
    assert board_line(found.participants[1], now=NOW).endswith("local-llm  ? of 8,192  unknown: no usage reported")


def test_several_agents_get_totals_and_many_are_sorted_by_urgency() -> None:
    full = [entry(f"a{n:02}", tokens=n * 1_000, max_tokens=100_000, context=report()) for n in range(1, 15)]
    board = Board.model_validate({"space": "s", "at": "2026-01-01T14:02:00Z", "participants": full})
    _, totals, _, *rows = board_lines(board, now=NOW, style=TerminalStyle(width=120))
    assert totals == "14 agents · 105,000 of 1,400,000 tokens in use"
    assert [row.split()[0] for row in rows][:3] == ["a10", "a11", "a12"]


@pytest.mark.parametrize(
    ("by", "titles"),
    [
        ("model", ["gpt (2, 22% full)", "no model reported (1, ~6% full)"]),
        ("role", ["agents (3, ~17% full)"]),
        ("state", ["fine (3, ~17% full)"]),
    ],
)
def test_rows_are_grouped_with_a_count(by: Grouping, titles: list[str]) -> None:
    entries = [entry(name, tokens=2_000, max_tokens=9_000, context=report(model="gpt")) for name in ("a", "b")]
    entries.append(entry("c", tokens=510, max_tokens=9_000, context=report(basis="projected")))
    board = Board.model_validate({"space": "s", "at": "2026-01-01T14:02:00Z", "participants": entries})
    lines = board_lines(board, now=NOW, style=TerminalStyle(width=120), by=by)
    assert [line for line in lines if line.endswith(")") and "(" in line] == titles
