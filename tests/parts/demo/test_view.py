"""The three views of the demo."""

import io
import json
import re
from typing import Any

import pytest

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import OUTPUT
from mew_agent.parts.demo.demo_view import line_for, live_table, print_plainly, shown, wrap

STATUS: dict[str, Any] = {
    "event": "status",
    "participant": "reader",
    "status": "active",
    "tokens": 1234,
    "max_tokens": 4096,
    "messages_in_context": 6,
    "context": {"basis": "reported", "level": "healthy", "severity": 0, "max_tokens_basis": "configured"},
}
CHECK: dict[str, Any] = {
    "event": "check",
    "participant": "reader",
    "trigger": "threshold",
    "freed_tokens": 1774,
    "expected_tokens": 1365,
    "reported_tokens": 1363,
    "off_tokens": 2,
    "off": "2 (0.1%)",
}


def test_json_view_prints_one_object_per_event(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OUTPUT, "is_json", True)
    with shown(("reader",)) as show:
        show(STATUS)
        show(CHECK)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [STATUS, CHECK]


def test_plain_view_prints_figures_basis_and_checks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_plainly(STATUS)
    print_plainly({**STATUS, "tokens": None, "context": {**STATUS["context"], "basis": "unknown", "reason": "cleared"}})
    print_plainly(CHECK)
    print_plainly({"event": "answer", "participant": "reader", "text": "not shown"})
    out = capsys.readouterr().out
    assert "reader  1,234 of 4,096  30% reported" in out
    assert "reader  ? of 4,096  unknown: cleared" in out
    assert "freed 1,774 tokens; after the next question 1,365 were expected" in out
    assert "its model reported 1,363: off by 2 (0.1%)" in out
    assert "not shown" not in out


def test_live_table_shows_figures_and_what_a_compaction_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", "130")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with live_table(("reader", "editor")) as show:
        show(STATUS)
        show(CHECK)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "1,234 of 4,096" in text
    assert "freed 1,774 tokens" in text


def test_long_lines_wrap_between_words() -> None:
    address = "http://127.0.0.1:8080/dashboard#token=" + "x" * 40
    assert wrap(f"one-two three {address} four", 12) == ["one-two", "  three", f"  {address}", "  four"]


def test_unreported_figures_of_a_compaction_are_unknown() -> None:
    event = {"event": "compact-done", "participant": "editor", "status": "compacted"}
    assert line_for(event) == "editor answers: freed ? tokens"
    done = {**event, "freed_tokens": 1_774, "freed_messages": 12}
    assert line_for(done) == "editor answers: freed 1,774 tokens, 12 messages"


def test_answers_cannot_control_the_terminal() -> None:
    hostile = line_for({**CHECK, "participant": "\x1b[2Jreader"})
    assert hostile is not None
    assert "\x1b" not in hostile


def test_view_is_plain_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    for is_json, expected in ((False, print_plainly), (True, terminal.print_json)):
        monkeypatch.setattr(OUTPUT, "is_json", is_json)
        with shown(("a",)) as show:
            assert show is expected
