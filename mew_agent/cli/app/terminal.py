"""What commands share at their edge: printing, the look of the terminal, exit codes, logging.

Owns standard output and error, so that every command says things in one way. Knows no space and no gateway.
"""

import logging
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import Final, TextIO

from mew_agent.cli.board.table import Look
from mew_agent.cli.board.words import clean

DONE: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2
SKIPPED: Final = 3
NO_ANSWER: Final = 4
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141

_UNBOUND_WIDTH: Final = 200
"""Where no terminal sets a width: a pipe and a file have room."""

_QUIETER: Final = ("httpx", "httpcore", "httpx2", "httpcore2", "openai", "websockets", "uvicorn")
"""Libraries that tell of every request where we tell of every turn."""


def say(text: str) -> None:
    """One line of outcome."""
    print(_encodable(text, sys.stdout), flush=True)


def say_lines(lines: Iterable[str]) -> None:
    """Lines that were laid out, and cleaned of what came over the wire, by `board_table`."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = "".join(f"{line}\n" for line in lines)
    # In one piece: a reader like `grep -q` leaves when it has seen enough, and the rest would fail.
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
    sys.stdout.flush()


def warn(text: str) -> None:
    """One line beside the outcome: a mistake, a warning, a hint."""
    print(_encodable(f"mew: {text}", sys.stderr), file=sys.stderr, flush=True)


def look(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Look:
    """What this stream can show. NO_COLOR, a pipe and a dumb terminal get no colour."""
    terminal = is_terminal(stream)
    return Look(
        width=shutil.get_terminal_size((_UNBOUND_WIDTH, 24)).columns,
        colour=terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb",
        unicode="utf" in (getattr(stream, "encoding", None) or "").lower(),
    )


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream."""
    return hasattr(stream, "isatty") and stream.isatty()


def configure_logging(level: str) -> None:
    """Send the log to standard error, a line an event."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    if level != "debug":
        for name in _QUIETER:
            logging.getLogger(name).setLevel(logging.WARNING)


def _encodable(text: str, stream: TextIO) -> str:
    """The text as this stream can take it: nobody's name may break a terminal of an older encoding."""
    text = "\n".join(clean(line) for line in text.split("\n"))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)
