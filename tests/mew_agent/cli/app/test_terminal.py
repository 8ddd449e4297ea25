"""Output that fits its stream."""

import io
import json
import logging
import sys
from datetime import UTC, datetime

import pytest
from starlette.requests import ClientDisconnect

from mew_agent import tracing
from mew_agent.cli.app import terminal


class Screen(io.TextIOWrapper):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


def screen(encoding: str = "utf-8") -> Screen:
    return Screen(io.BytesIO(), encoding=encoding, write_through=True)


def test_terminal_gets_colour_unless_turned_off() -> None:
    assert terminal.style_of(screen(), {}).colour
    assert not terminal.style_of(screen(), {"NO_COLOR": "1"}).colour
    assert not terminal.style_of(screen(), {"TERM": "dumb"}).colour
    assert not terminal.style_of(io.StringIO(), {}).colour


def test_drawn_characters_follow_the_encoding() -> None:
    assert terminal.style_of(screen(), {}).unicode
    assert not terminal.style_of(screen("ascii"), {}).unicode


def test_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "61")
    assert terminal.style_of(screen(), {}).width == 61


def test_a_progress_line_replaces_itself_and_stays_out_of_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    written = []
    for stream in (screen(), io.TextIOWrapper(io.BytesIO(), write_through=True)):
        monkeypatch.setattr(sys, "stderr", stream)
        with terminal.ProgressLine(after_seconds=0) as progress:
            progress.show("review: 1 of 10 joined, waiting for a, b, c")
        assert isinstance(stream.buffer, io.BytesIO)
        written.append(stream.buffer.getvalue().decode())
    assert written[0].replace("\r\x1b[K", "|") == "|review: 1 of 10 joined,…, 0 s|"
    assert written[1] == ""


def test_other_output_takes_the_place_of_a_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = screen()
    monkeypatch.setattr(sys, "stderr", stream)
    with terminal.ProgressLine(after_seconds=0) as progress:
        progress.show("reading")
        terminal.warn("a warning")
    assert isinstance(stream.buffer, io.BytesIO)
    written = stream.buffer.getvalue().decode().replace("\r\x1b[K", "|")
    assert written == "|reading, 0 s|mew: a warning\n"


def test_short_work_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = screen()
    monkeypatch.setattr(sys, "stderr", stream)
    with terminal.ProgressLine(after_seconds=60) as progress:
        progress.show("reading")
    assert isinstance(stream.buffer, io.BytesIO)
    assert stream.buffer.getvalue() == b""


def test_output_to_a_pipe_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal.style_of(io.StringIO(), {}).width >= 160


def test_text_survives_an_encoding_without_its_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    out = screen("ascii")
    monkeypatch.setattr(sys, "stdout", out)
    terminal.print_line("猫: done\x1b[2J\nagain")
    terminal.print_lines(["█ 5"])
    assert isinstance(out.buffer, io.BytesIO)
    assert out.buffer.getvalue() == b"?: done[2J\nagain\n? 5\n"


def test_warning_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.warn("careful")
    assert capsys.readouterr() == ("", "mew: careful\n")


@pytest.mark.parametrize(("level", "is_shown"), [("debug", True), ("info", False)])
def test_chatty_libraries_are_quiet_unless_debugging(level: str, *, is_shown: bool) -> None:
    handler = terminal.log_handler(io.StringIO(), level)
    record = logging.LogRecord("httpx2.client", logging.INFO, "", 1, "HTTP Request: GET", (), None)
    assert bool(handler.filter(record)) is is_shown


def test_a_name_in_a_log_begins_no_record() -> None:
    forged = "x\n12:00:00 INFO ada approved it\r\x1b[2K\u202e"
    record = logging.LogRecord("mew_agent.x", logging.WARNING, "", 1, "call of '%s' failed", (forged,), None)
    shown = terminal.TextLines("%(levelname)s %(message)s").format(record)
    assert shown == "WARNING call of 'x\n  12:00:00 INFO ada approved it\n  [2K' failed"


def test_a_client_that_went_away_is_no_line_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[logging.Handler] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **given: handlers.extend(given["handlers"]))
    terminal.configure_logging("warning")
    for error, is_shown in ((ClientDisconnect(), False), (ValueError(), True)):
        about = type(error), error, None
        record = logging.LogRecord("mcp.server", logging.ERROR, "", 1, f"failed: {is_shown}", (), about)
        assert bool(handlers[0].filter(record)) is is_shown


def test_a_log_line_as_json_holds_the_ids_of_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(terminal.LOG_FORMAT_VARIABLE, "json")
    record = logging.LogRecord("mew_agent.x", logging.WARNING, "", 1, "call of '%s'\nfailed", ("add",), None)
    with tracing.span("turn", {"envelope_id": "e-1", "participant": "ada"}):
        with tracing.span("model_call", {"call_id": "c-1"}):
            inside = json.loads(terminal.JsonLines().format(record))
        between = json.loads(terminal.JsonLines().format(record))
    assert datetime.fromisoformat(inside.pop("ts")).tzinfo is UTC
    about = {"level": "warning", "logger": "mew_agent.x", "message": "call of 'add'\nfailed"}
    assert inside == {**about, "envelope_id": "e-1", "participant": "ada", "call_id": "c-1"}
    assert "call_id" not in between
    assert "envelope_id" not in terminal.JsonLines().format(record)
