"""Ages, shares and names of the board."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_args

import pytest
from mew_board import words
from mew_board.board_json import ShownParticipant
from mew_board.figures import compaction_sizes
from mew_board.view import ParticipantView
from mew_protocol.context_report import (
    COUNTED,
    Basis,
    NextPromptBasis,
    PartBasis,
    SenderSpending,
    UnknownReason,
    Waiting,
)
from mew_protocol.payloads.participant import ESTIMATE, Board, BoardEntry, Status

from mew_agent.cli.board.table import TerminalStyle, board_lines
from mew_agent.cli.remote.status import _as_json
from mew_agent.participant.peers import PeerContext
from mew_agent.parts.mcp.space_offers import board_text
from mew_agent.parts.shared.reported_usage import context_key
from mew_agent.parts.terminal.panels import row
from tests.support.linear import growth

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-5, "0 s ago"), (0, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (7_200, "2 h ago"), (90_000, "1 d ago")],
)
def test_age_is_shown_in_its_largest_whole_unit(seconds: int, said: str) -> None:
    assert words.ago((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == said


@pytest.mark.parametrize("at", [None, "", "yesterday", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-10:00"])
def test_invalid_time_has_no_age(at: str | None) -> None:
    assert words.ago(at, NOW) is None
    for hours in (-12, 14):
        assert words.clock(at, NOW.astimezone(timezone(timedelta(hours=hours)))) == "?"


def test_time_without_a_zone_is_utc() -> None:
    assert words.ago("2026-01-01T11:59:00", NOW) == "1 min ago"


@pytest.mark.parametrize(("tokens", "share"), [(0, 0), (4, 0), (5, 1), (899, 90), (1_000, 100), (1_500, 150)])
def test_share_rounds_half_up_and_may_exceed_the_window(tokens: int, share: int) -> None:
    assert words.percent_of(tokens, 1_000) == share


def test_share_without_a_window_is_unknown() -> None:
    assert words.percent_of(5, None) is None


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("near_limit", "near limit"),
        ("cleared:new_task", "cleared: new_task"),
        ("tool_failed:files__write_file: 'files' answered: no", "tool failed: files__write_file: 'files' answered: no"),
        ("state_changed:redlined -> nominal", "state changed: redlined -> nominal"),
        ("odd:", "odd"),
    ],
)
def test_names_after_the_colon_of_a_status_are_kept(status: str, said: str) -> None:
    assert words.state(status) == said


def test_participant_without_a_context_has_no_figures() -> None:
    entry = BoardEntry(id="files", connected=False, status=Status(messages_in_context=0, status="active"))
    assert ParticipantView(entry, NOW).sentence == "files  reports no context  (not connected)"


def test_shutdown_of_a_participant_that_joined_again_is_not_shown() -> None:
    status = Status(messages_in_context=0, status="shutting_down:enough")
    gone, back = (BoardEntry(id="files", connected=connected, status=status) for connected in (False, True))
    assert words.remarks(gone, now=NOW) == ["not connected", "shutting down: enough"]
    assert words.remarks(back, now=NOW) == []


@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        ([(10, "reported"), (40, "reported")], "2 sessions, fullest 40 of 100"),
        ([(40, "projected")], "1 session, fullest ~40 of 100"),
        ([(None, "unknown")], "1 session"),
    ],
)
def test_sessions_are_counted_apart_from_the_agents_own_figures(
    figures: list[tuple[int | None, str]], shown: str
) -> None:
    sessions = [
        {"session": "s", "participant": "ada", "messages_in_context": 2, "tokens": tokens, "max_tokens": 100}
        | {"context": {"basis": basis, "reason": "no_call_yet" if basis == "unknown" else None}}
        for tokens, basis in figures
    ]
    report = {"basis": "reported", "level": "healthy", "severity": 0, "sessions": sessions}
    status = Status.model_validate({"messages_in_context": 1, "tokens": 5, "max_tokens": 10, "context": report})
    assert words.remarks(BoardEntry(id="x", connected=True, status=status), now=NOW) == [shown]


def test_a_participant_that_left_waits_for_no_approval() -> None:
    wait = {"kind": "approval", "what": "approval of write on files", "since": ""}
    report = {"basis": "reported", "level": "healthy", "severity": 0, "waiting": [wait]}
    status = Status.model_validate({"messages_in_context": 1, "status": "waiting_for_approval", "context": report})
    gone, back = (BoardEntry(id="x", connected=connected, status=status) for connected in (False, True))
    assert words.remarks(gone, now=NOW) == ["not connected"]
    assert words.remarks(back, now=NOW) == ["waiting for approval", "approval of write on files"]


def test_an_approval_of_a_compaction_shows_its_size_and_saving() -> None:
    arguments = {"trigger": "threshold", "present_tokens": 1_293, "freed_tokens": 763}
    wait = {"kind": "approval", "what": "approval of compact_context", "since": "", "tool": "compact_context"}
    assert words.approval(Waiting.model_validate({**wait, "arguments": arguments})) == (
        "approval of a compaction of ~1,293 tokens, which frees ~763"
    )
    assert words.approval(Waiting.model_validate(wait)) == "approval of a compaction"


@pytest.mark.parametrize("reason", get_args(UnknownReason))
def test_every_reason_for_an_unknown_figure_has_words(reason: UnknownReason) -> None:
    report = {"basis": "unknown", "reason": reason}
    said = words.reason(Status.model_validate({"messages_in_context": 1, "context": report}), NOW)
    assert said
    assert "_" not in said


def test_every_basis_is_decided_to_be_counted_or_an_estimate() -> None:
    estimates = {"projected", "agent_reported", "provisional", "unknown", "tokenizer", "heuristic"}
    bases = {*get_args(Basis), *get_args(NextPromptBasis), *get_args(PartBasis)}
    assert bases - estimates == COUNTED
    shown = {
        basis: words.tokens(Status.model_validate({"messages_in_context": 1, "tokens": 5, "context": {"basis": basis}}))
        for basis in get_args(Basis)
        if basis != "unknown"
    }
    assert {basis for basis, text in shown.items() if text == "5"} == {"reported", "server_counted"}


def test_largest_suggested_saving_is_shown() -> None:
    saved = [{"text": "a", "tokens_saved": 12, "impact": "low"}, {"text": "b", "tokens_saved": 1_200, "impact": "high"}]
    report = {"basis": "reported", "level": "warning", "severity": 1, "suggestions": saved}
    status = Status.model_validate({"messages_in_context": 1, "tokens": 5, "max_tokens": 10, "context": report})
    assert words.remarks(BoardEntry(id="x", connected=True, status=status), now=NOW) == ["warning", "could save ~1,200"]


def test_clipped_text_ends_with_a_mark() -> None:
    assert words.clip("participant", 6) == "parti…"
    assert words.clip("猫猫猫", 5) == "猫猫…"
    assert words.clip("short", 5) == "short"
    assert words.clip("long", 0) == ""
    assert words.clip("e\u0301te\u0301s", 4) == "e\u0301te\u0301s"
    assert words.clip("e\u0301te\u0301s", 3) == "e\u0301t…"


def test_a_text_of_marks_is_clipped_in_linear_time() -> None:
    def clip(text: str) -> str:
        return words.clip(text, len(text) // 4)

    assert len(words.clip("e" + "\u0301" * 100_000, 80)) < 1_000
    assert growth(clip, lambda count: "e" + "\u0301" * count + "xyz" * count, "marks") is None


def test_wire_names_are_shown_as_words() -> None:
    assert words.words("model_unreachable") == "model unreachable"


def test_missing_figure_is_unknown_and_never_zero() -> None:
    assert words.tokens(None) == words.window(None) == "?"
    assert words.basis(None) == words.basis(Status(messages_in_context=0)) == "unknown"
    assert words.next_call(None) == "-"
    assert words.severity(None) is None


def test_spend_is_shown_with_its_budget_and_never_as_a_share() -> None:
    report: dict[str, Any] = {
        "basis": "reported",
        "measure": "cumulative",
        "spent_tokens": 155_000,
        "budget_tokens": 150_000,
    }
    report["queued"] = {"messages": 3, "tokens": 1_200, "basis": "projected"}
    status = Status.model_validate(
        {"messages_in_context": 9, "tokens": 41_000, "max_tokens": 200_000, "context": report}
    )
    entry = BoardEntry(id="ralph", connected=True, status=status)
    assert words.remarks(entry, now=NOW) == [
        "3 messages queued (~1,200 tokens)",
        "spent 155,000 of 150,000",
    ]
    assert words.percent_of(status.tokens, status.max_tokens) == 21


def test_limits_for_others_and_what_they_cost_are_named() -> None:
    waits = [
        {"kind": kind, "what": "w", "since": "s", "peer": peer} for kind, peer in (("tools", "bob"), ("budget", "cleo"))
    ]
    report = {"basis": "unknown", "reason": "no_call_yet", "waiting": waits}
    status = Status.model_validate({"messages_in_context": 0, "context": report})
    entry = BoardEntry(id="coder", connected=True, status=status)
    assert words.remarks(entry, now=NOW) == ["not all tools of bob", "budget spent for cleo"]
    spent = SenderSpending(participant="ada", tokens=1_200, unreported_calls=2, budget_tokens=5_000, at="t")
    assert words.spent_for(spent) == "ada: 1,200 of 5,000 tokens per hour, 2 calls not reported"
    assert words.spent_for(spent.model_copy(update={"tokens": None})).startswith("ada: ? of 5,000")


def test_every_surface_calls_a_figure_without_a_report_an_estimate() -> None:
    status = Status(messages_in_context=3, tokens=500, max_tokens=2_000)
    entry = BoardEntry(id="other", connected=True, status=status)
    context = PeerContext.from_status(status, "")
    now = datetime.now(UTC)
    board = Board(space="a", at="", participants=(entry,))
    for surface in (
        ParticipantView(entry, now).sentence,
        "\n".join(board_lines(board, now=now, style=TerminalStyle())),
        str(_as_json(entry, ())),
        words.report_line(entry, now),
        str(context_key("other", context)),
        board_text(board, now),
        ShownParticipant.model_validate(ParticipantView(entry, None)).known,
    ):
        assert ESTIMATE in surface
        assert "not stated" not in surface


def test_every_surface_shows_the_age_of_an_old_figure() -> None:
    status = Status(messages_in_context=3, tokens=11_500, max_tokens=20_000)
    at = (NOW - timedelta(minutes=12)).isoformat()
    entry = BoardEntry(
        id="other",
        connected=True,
        status=status,
        received_at=at,
        figure_at=at,
        outdated="before_join",
        seconds_to_compaction=60,
    )
    board = Board(space="a", at="", participants=(entry,))
    view = ParticipantView(entry, NOW)
    tall, short = (row(view, width=70, is_tall=is_tall, style=TerminalStyle()) for is_tall in (True, False))
    for surface in (
        view.sentence,
        "\n".join(board_lines(board, now=NOW, style=TerminalStyle(width=60))),
        "\n".join(board_lines(board, now=NOW, style=TerminalStyle(width=200))),
        words.report_line(entry, NOW),
        board_text(board, NOW),
        "".join(text for line in tall for text, _ in line),
        "".join(text for line in short for text, _ in line),
    ):
        assert "figure 12 min old" in surface
        assert "full in" not in surface


def test_the_last_reported_figure_of_an_unknown_size_has_its_age() -> None:
    last = {"tokens": 98_412, "measured_at": (NOW - timedelta(hours=2)).isoformat()}
    report = {"basis": "unknown", "reason": "restarted", "last_reported": last}
    status = Status.model_validate({"messages_in_context": 1, "context": report})
    assert words.reason(status, NOW) == "restarted, was 98,412 2 h ago"
    entry = BoardEntry(id="coder", connected=True, status=status)
    assert words.report_line(entry, NOW) == "? of ? tokens (unknown: restarted, was 98,412 2 h ago)"


def test_each_known_size_of_a_proposed_compaction_is_shown() -> None:
    assert compaction_sizes({"present_tokens": 1_293}) == " of ~1,293 tokens"
    assert compaction_sizes({"freed_tokens": 763}) == ", which frees ~763 tokens"
    assert compaction_sizes({}) == ""
