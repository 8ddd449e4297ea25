"""Reads and writes texts, prints, logs, and detects the abilities of a terminal.

Owns the standard streams, so that all commands read and print in the same way. Knows no space and no gateway.
"""

import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, Self, TextIO

from mew_board.quoting import clean, indented
from mew_board.words import clip
from mew_listener.log_budget import LogBudget
from mew_protocol.envelope import parse_time
from mew_settings.plugins import load_only
from mew_settings.setting_problems import unreadable

from mew_agent.cli.app.options import OUTPUT
from mew_agent.cli.board.table import TerminalStyle
from mew_agent.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite
    from rich.live import Live

_DEFAULT_WIDTH: Final = 200
"""Width of a pipe or a file, which have room for long lines."""

_CHATTY_LIBRARIES: Final = ("httpx", "httpcore", "httpx2", "httpcore2", "openai", "websockets")
"""Libraries that log every request where we log every turn."""


LOG_FORMAT_VARIABLE: Final = "MEW_LOG_FORMAT"
"""Variable with the value `json` for log lines in JSON, in every program of a space."""


class TextLines(logging.Formatter):
    """Writes a log record as text. Names and texts in it cannot fake another record."""

    def format(self, record: logging.LogRecord) -> str:
        return indented(super().format(record))


class JsonLines(logging.Formatter):
    """Writes a log record as a line of JSON, with the ids of its envelope and call."""

    def format(self, record: logging.LogRecord) -> str:
        from mew_agent.tracing import log_ids

        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        about = {"ts": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        error = {"error": self.formatException(record.exc_info)} if record.exc_info else {}
        return json_line({**about, **log_ids(), **error})


def read_text(file: Path | None, where: str) -> str:
    """Read a file; None and `-` mean standard input. Raises `ConfigError` naming `where` if it is not UTF-8 text."""
    is_stream = file is None or str(file) == "-"
    name = "standard input" if is_stream else str(file)
    try:
        # Check the bytes: with some locales the text stream accepts anything.
        data = sys.stdin.buffer.read() if is_stream or file is None else file.read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(where, f"{name} {unreadable(error)}", "a text file") from None
    if "\x00" in text:
        raise ConfigError(where, f"{name} is not text (a NUL byte at {text.index(chr(0)):,})", "a text file")
    return text


def print_line(text: str) -> None:
    """Print a line of outcome."""
    ProgressLine.step_aside()
    print(_printable(text, sys.stdout), flush=True)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines that were laid out and cleaned of control characters by `board.table`."""
    ProgressLine.step_aside()
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = "".join(f"{line}\n" for line in lines)
    # Write once: a reader like `grep -q` closes the pipe after the first match, and a second write would fail.
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print a value as one line of JSON. It is ASCII, so it needs no cleaning and suits every terminal."""
    print_lines([json_line(value)])


def json_line(value: Any) -> str:
    """Return a value as one line of JSON, the form that all commands print."""
    return json.dumps(value, separators=(",", ":"))


def print_outcome(text: str, value: Any) -> None:
    """Print the outcome of a command, as text or with `--json` as JSON."""
    if OUTPUT.is_json:
        print_json(value)
    else:
        print_line(text)


def warn(text: str) -> None:
    """Print a warning or a hint on standard error, unless the command is quiet."""
    if not OUTPUT.is_quiet:
        print_error(text)


def note(text: str) -> None:
    """Print a remark about the outcome on standard error, unless the command is quiet."""
    ProgressLine.step_aside()
    if not OUTPUT.is_quiet:
        print(_printable(f"({text})", sys.stderr), file=sys.stderr, flush=True)


def print_error(text: str) -> None:
    """Print an error on standard error."""
    ProgressLine.step_aside()
    print(_printable(f"mew: {text}", sys.stderr), file=sys.stderr, flush=True)


class ProgressLine:
    """Progress of a command: a line on standard error, after the first second.

    The line is redrawn every second, below other output. Nothing is written without a terminal or with `--quiet`.
    """

    _lock: ClassVar = threading.RLock()
    _shown: ClassVar[list["ProgressLine"]] = []
    """The lines of running work, the innermost last."""

    def __init__(self, *, after_seconds: float = 1.0) -> None:
        has_place = is_terminal(sys.stderr) and os.environ.get("TERM", "dumb") != "dumb"
        self._has_place = has_place and not OUTPUT.is_quiet
        self._begun, self._after_seconds = time.monotonic(), after_seconds
        self._text: str | None = None
        self._is_drawn = False
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._has_place:
            self._shown.append(self)
            threading.Thread(target=self._redraw, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.clear()
        if self in self._shown:
            self._shown.remove(self)

    @classmethod
    def step_aside(cls) -> None:
        """Remove the line until the next redraw, to make room for other output."""
        for one in cls._shown:
            one._erase()

    def clear(self) -> None:
        """Remove the line."""
        self._text = None
        self._erase()

    def show(self, text: str) -> None:
        """Replace the text of the line. It also shows the seconds since the work began."""
        self._text = text
        self._draw()

    def _redraw(self) -> None:
        while not self._ended.wait(1.0):
            self._draw()

    def _draw(self) -> None:
        spent = time.monotonic() - self._begun
        text = self._text
        if text is None or not self._has_place or spent < self._after_seconds or self._shown[-1:] != [self]:
            return
        room = shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns - 1
        seconds = f", {spent:.0f} s"
        with self._lock:
            self._is_drawn = True
            sys.stderr.write(f"\r\x1b[K{clip(_printable(text, sys.stderr), room - len(seconds))}{seconds}")
            sys.stderr.flush()

    def _erase(self) -> None:
        with self._lock:
            if self._is_drawn:
                self._is_drawn = False
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


def drawn_in_place(lines: Callable[[], Iterable[str]], *, per_second: float) -> "Live":
    """Yield a block that redraws lines in place at this rate, and when its `refresh` is called."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def draw() -> Text:
        return Text.from_ansi("\n".join(lines()), no_wrap=True, overflow="crop")

    console = Console(highlight=False)
    return Live(get_renderable=draw, console=console, refresh_per_second=per_second, redirect_stdout=False)


def now() -> datetime:
    """Return the current time in the time zone of the terminal."""
    return datetime.now(UTC).astimezone()


def clock_of_gateway(at: str) -> Callable[[], datetime]:
    """Return a clock that goes with a gateway, whose time is `at` now. Ages are right although the machines differ."""
    moment = parse_time(at)
    ahead = timedelta(0) if moment is None else moment - now()
    return lambda: now() + ahead


def own_command() -> str:
    """Return how to type `mew` here: by path if the shell does not find it, as in a clone after `make demo`."""
    program = Path(sys.executable).parent / "mew"
    if shutil.which("mew") is not None or not program.is_file():
        return "mew"
    here = Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)


class TerminalClient(Protocol):
    """A way to take part in a space from a terminal: an entry of the table `mew_agent.terminals`."""

    def join(self, connection: Any, config: Any = None) -> None:
        """Chat until the person leaves. Takes `ConnectionOptions`, and the `SpaceConfig` if already read."""

    def open_space(
        self,
        who: Any,
        targets: tuple[str, ...] = (),
        *,
        start_on: Literal["conversation", "board"] = "conversation",
        bell: bool = False,
    ) -> None:
        """Run the full-screen application as an `Identity`, and send plain text to `targets`."""


def _client() -> TerminalClient | None:
    """Return the installed terminal client. Raises `TwoPlugins`."""
    return load_only("mew_agent.terminals")


def full_screen() -> TerminalClient | None:
    """Return the full-screen application of a space; None if it is not installed or the terminal cannot show it."""
    streams = (sys.stdin, sys.stdout, sys.stderr)  # Textual draws on standard error
    if not all(map(is_terminal, streams)) or os.environ.get("TERM", "dumb") == "dumb":
        return None
    return _client()


def join_space(connection: Any, config: Any = None) -> None:
    """Chat in a space from this terminal; see `TerminalClient.join`. Raises `ConfigError` if no terminal client is
    installed.
    """
    client = _client()
    if client is None:
        raise ConfigError("mew connect", "the part of mew-agent with this command is not installed")
    client.join(connection, config)


def style_of(stream: TextIO, environ: Mapping[str, str] | None = None) -> TerminalStyle:
    """Return the abilities of a stream. NO_COLOR, a pipe and a dumb terminal turn colour off."""
    environ = os.environ if environ is None else environ
    return TerminalStyle(
        width=shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns,
        colour=is_terminal(stream) and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb",
        unicode="utf" in (getattr(stream, "encoding", None) or "").lower(),
    )


def is_terminal(stream: TextIO) -> bool:
    """Return True if a stream is a terminal."""
    return hasattr(stream, "isatty") and stream.isatty()


def configure_logging(level: str) -> None:
    """Log to standard error, one line per event; as JSON if `MEW_LOG_FORMAT` is `json`."""
    logging.basicConfig(level=level.upper(), handlers=[log_handler(sys.stderr, level)])


def log_handler(stream: "SupportsWrite[str]", level: str) -> logging.Handler:
    """Return a handler that writes records of this level and above to a stream, in the format of `MEW_LOG_FORMAT`."""
    handler = logging.StreamHandler(stream)
    handler.setLevel(level.upper())
    is_json = os.environ.get(LOG_FORMAT_VARIABLE) == "json"
    handler.setFormatter(JsonLines() if is_json else TextLines("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    if level != "debug":
        handler.addFilter(_is_not_chatty)
    handler.addFilter(_is_no_disconnect)
    handler.addFilter(LogBudget(least_level=logging.INFO))  # keeps the log small during a flood of messages
    return handler


def _is_not_chatty(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] not in _CHATTY_LIBRARIES


def _is_no_disconnect(record: logging.LogRecord) -> bool:
    """Return False for the log record of a disconnected client: SDKs log it themselves, with a traceback."""
    return record.exc_info is None or type(record.exc_info[1]).__name__ != "ClientDisconnect"


def _printable(text: str, stream: TextIO) -> str:
    """Return the text without control characters and characters outside the stream's encoding."""
    text = "\n".join(clean(line) for line in text.split("\n"))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)
