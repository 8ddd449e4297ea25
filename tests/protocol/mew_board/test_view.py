"""The view of a participant: how urgent it is, its word, its place, and the JSON that pages get."""

from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from mew_board import words
from mew_board.board_json import ShownParticipant, Tone
from mew_board.grouping import about, grouped, total, totals
from mew_board.shared_words import ATTENTION_WORDS, STATE_WORDS
from mew_board.view import TONES, ParticipantView, items_of
from mew_board.visible import MOST_CHARS
from mew_protocol.context_report import Basis, LimitBasis, PartName, UnknownReason
from mew_protocol.payloads.attention_items import AttentionItem, AttentionKind
from mew_protocol.payloads.participant import BoardEntry, Status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEFORE = "2026-01-01T11:00:00+00:00"
WORK = {"kind": "compaction", "done": 1, "total": 3, "unit": "pieces", "since": BEFORE}
UNKNOWN = {"basis": "unknown", "reason": "no_call_yet"}


def view(
    *,
    now: datetime | None = NOW,
    connected: bool = True,
    items: tuple[AttentionItem, ...] = (),
    context: dict[str, Any] | None = None,
    name: str = "coder",
    **status: Any,
) -> ParticipantView:
    report = {"basis": "reported", "level": "healthy", "severity": 0, **(context or {})}
    given = {"messages_in_context": 3, "tokens": 50_000, "max_tokens": 100_000, "context": report, **status}
    entry = {"id": name, "connected": connected, "status": given, "received_at": BEFORE}
    return ParticipantView(BoardEntry.model_validate(entry), now, items=items)


def shown(one: ParticipantView) -> ShownParticipant:
    return ShownParticipant.model_validate(one)


def item(kind: AttentionKind, level: Any = "warning") -> AttentionItem:
    return AttentionItem(id=f"{kind}:coder", kind=kind, level=level, participant="coder", reason="x")


@pytest.mark.parametrize(
    ("given", "tone", "word"),
    [
        ({}, "fine", "healthy"),
        ({"items": (item("approval", "blocking"),)}, "blocking", "waits for approval"),
        ({"status": "near_limit", "context": {"level": "near_limit", "severity": 2}}, "warning", "near limit"),
        ({"status": "mcp_server_down:clock"}, "blocking", "mcp server down"),
        ({"context": {"compact_at_tokens": 90_000, "turns_to_compaction": 1}}, "notice", "compacts next"),
        ({"tokens": 95_000}, "fine", "healthy"),
        ({"tokens": 95_000, "context": {"severity": "unknown"}}, "notice", "nearly full"),
        ({"tokens": None, "context": UNKNOWN}, "unknown", "unknown"),
        ({"connected": False}, "away", "disconnected"),
        ({"connected": False, "items": (item("disconnected"),)}, "warning", "disconnected"),
        ({"connected": False, "items": (item("disconnected", "notice"),)}, "away", "disconnected"),
        ({"items": (item("unread"),)}, "warning", "has unread messages"),
        ({"connected": False, "items": (item("unread"),)}, "warning", "disconnected"),
        ({"status": "compacting", "context": {"progress": WORK}}, "fine", "compacting 1/3"),
    ],
)
def test_trouble_never_looks_calm(given: dict[str, Any], tone: Tone, word: str) -> None:
    found = view(**given)
    assert (found.tone, found.word) == (tone, word)


def test_a_participant_without_a_context_has_no_tone_of_its_own() -> None:
    status = Status(messages_in_context=0, status="active")
    found = ParticipantView(BoardEntry(id="files", connected=True, status=status), NOW)
    assert (found.tone, found.word, found.role) == ("none", "active", "tool")


def test_order_puts_need_first_then_the_fullest_then_names() -> None:
    views = [
        view(name="b", tokens=20_000),
        view(name="a", tokens=21_000),
        view(name="full", tokens=80_000),
        view(name="needy", tokens=1_000, items=(item("approval", "blocking"),)),
        view(name="gone", connected=False),
        view(name="blank", tokens=None, context=UNKNOWN, items=(item("approval", "blocking"),)),
    ]
    ordered = sorted(views, key=lambda one: one.order)
    assert [one.name for one in ordered] == ["needy", "blank", "full", "a", "b", "gone"]


def test_each_tone_and_kind_has_words() -> None:
    assert set(get_args(Tone)) == set(TONES)
    assert {*TONES, "compacting"} == set(STATE_WORDS)
    assert set(get_args(AttentionKind)) == set(ATTENTION_WORDS)


def test_every_value_of_a_report_has_words_of_its_own() -> None:
    reasons = [view(tokens=None, context={**UNKNOWN, "reason": one}).known for one in get_args(UnknownReason)]
    bases = [view(context={"basis": one}).origin for one in get_args(Basis) if one != "unknown"]
    windows = [dict(view(context={"max_tokens_basis": one}).facts)["window"] for one in get_args(LimitBasis)]
    parts = [
        shown(view(context={"breakdown": [{"part": one, "tokens": 1, "basis": "exact"}]})).parts[0].name
        for one in get_args(PartName)
    ]
    for texts in (reasons, bases, windows, parts):
        assert len({*texts}) == len(texts)
        assert all(text and "_" not in text for text in texts)


@pytest.mark.parametrize(
    ("context", "tokens", "pattern"),
    [
        ({}, 5, "solid"),
        ({"basis": "server_counted"}, 5, "solid"),
        ({"basis": "projected"}, 5, "hatched"),
        ({"basis": "agent_reported"}, 5, "hatched"),
        ({"basis": "provisional"}, 5, "hatched"),
        (UNKNOWN, None, "dotted"),
    ],
)
def test_figures_with_a_tilde_are_hatched(context: dict[str, Any], tokens: int | None, pattern: str) -> None:
    found = view(context=context, tokens=tokens)
    assert words.pattern(found.status) == pattern
    assert found.amount.startswith("~") == (pattern == "hatched")
    assert words.pattern(Status(messages_in_context=1, tokens=5)) == "hatched"


def test_a_page_gets_times_where_others_get_ages() -> None:
    context = {"measured_at": BEFORE, "compact_at_tokens": 90_000, "turns_to_compaction": 5}
    assert view(context=context).origin == "reported 1 h ago"
    line = shown(view(now=None, context=context))
    assert line.origin == f"reported {words.AGE_MARK}{BEFORE}{words.AGE_MARK} ago"
    assert line.due == "compacts in ~5 turns (at 90,000)"
    next_turn = {**context, "turns_to_compaction": 0}
    assert view(context=next_turn).due == "compacts in its next turn (at 90,000)"
    assert (line.amount, line.window, line.share) == ("50,000", "100,000", "50%")


def test_the_last_reported_figure_is_shown_as_past() -> None:
    last = {"tokens": 40_000, "measured_at": BEFORE}
    line = shown(view(now=None, tokens=None, context={**UNKNOWN, "reason": "restarted", "last_reported": last}))
    assert line.gauge is not None
    assert (line.gauge.pattern, line.gauge.fill, line.gauge.past, line.amount) == ("past", None, 0.4, "?")
    cleared = shown(view(now=None, tokens=None, context={**UNKNOWN, "reason": "cleared", "last_reported": last}))
    assert cleared.gauge is not None
    assert (cleared.gauge.pattern, cleared.gauge.past) == ("dotted", None)
    assert line.known.startswith("unknown: restarted, was 40,000 ")


def test_long_texts_of_a_participant_are_cut_with_a_mark() -> None:
    long = "a" * 100_000
    line = shown(view(now=None, status=long, context={"level": long, "model": long, "policy": long}))
    assert len(line.model_dump_json()) < 20 * MOST_CHARS
    assert line.word.endswith("…")


def test_totals_count_known_figures_and_waits() -> None:
    views = [
        view(context={"spending": {"prompt_tokens": 900, "completion_tokens": 100}}),
        view(tokens=None, context=UNKNOWN, items=(item("approval", "blocking"),)),
        view(context={"basis": "projected"}, status="compacting"),
        ParticipantView(BoardEntry(id="ada", connected=True), NOW),
    ]
    found = totals(total(views))
    assert found.text == (
        "3 agents · ~100,000 of 200,000 tokens in use · 1 unknown · 1,000 spent"
        " · 1 blocked until you act · 1 compacting"
    )
    assert totals(total(views[1:2])).text == "1 agent · ? tokens in use · 1 unknown · 1 blocked until you act"
    assert totals(total(views[3:])).text == "No agent has reported a context yet."


def test_a_group_of_one_is_as_full_as_its_row() -> None:
    for tokens, fill in ((765, "77%"), (764, "76%"), (5, "1%")):
        row = view(tokens=tokens, max_tokens=1_000)
        (group,) = grouped([row], "model")
        assert (row.share, about(total(group.rows))) == (fill, f"1, {fill} full")


def test_items_of_a_group_belong_to_their_participants() -> None:
    group = AttentionItem(id="g", kind="loop", level="warning", reason="2 agents", items=(item("loop"), item("held")))
    assert [one.kind for one in items_of((group, item("approval")))["coder"]] == ["loop", "held", "approval"]


def test_an_absent_agent_does_nothing_now() -> None:
    """Its last status describes the work before it left, which it may not continue."""
    context = {"progress": WORK, "compact_at_tokens": 90_000, "turns_to_compaction": 4}
    here, away = (view(connected=one, status="compacting", context=context) for one in (True, False))
    assert here.doing == "compacting, piece 2 of 3"
    assert here.progress is not None
    assert words.compacts_in(here.entry) == "now"
    assert away.doing == ""
    assert away.progress is None
    assert away.remarks == ["not connected, last report 1 h ago"]
    assert words.compacts_in(away.entry) == "~4 turns"
    assert away.due == "compacts in ~4 turns (at 90,000)"
    failed = view(connected=False, status="model_unreachable")
    assert failed.doing == "model unreachable"
