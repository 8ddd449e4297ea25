"""How the demo is shown: a live table in a terminal, plain lines without one, JSON Lines on request.

Each view takes the story's events, one by one. They know neither the gateway nor the agents.
"""

import json
import sys
import textwrap
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from mew_protocol.payloads.participant import Board, BoardEntry, Status

from mew_agent.cli.app import terminal
from mew_agent.cli.board.table import board_line, board_lines
from mew_agent.cli.board.words import clean

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

Event = Mapping[str, Any]


class View(Protocol):
    """Somewhere events are shown."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, event: Event) -> None:
        """Show one event."""
        ...


def view_for(*, as_json: bool, names: tuple[str, ...]) -> View:
    """The view that fits where standard output goes. `names` are the agents, in the order of their rows."""
    if as_json:
        return JsonLines()
    if terminal.is_terminal(sys.stdout):
        return LiveTable(names)
    return PlainLines()


class _Lines:
    """A view that holds nothing open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class JsonLines(_Lines):
    """One JSON object per event."""

    def show(self, event: Event) -> None:
        sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
        sys.stdout.flush()


class PlainLines(_Lines):
    """One line per event that a reader of a log wants to see."""

    def show(self, event: Event) -> None:
        if event["event"] == "status":
            terminal.say(board_line(entry_from(event), now=_now()))
        elif (line := line_for(event)) is not None:
            terminal.say(f"{_now():%H:%M:%S}  {line}")


class LiveTable:
    """The board redrawn in place, and above it the few lines that matter."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._board = Board(
            space="demo",
            at=_now().isoformat(),
            participants=(
                BoardEntry(id="you", connected=True),
                *(BoardEntry(id=name, connected=False) for name in names),
            ),
        )
        self._names = names
        self._now_line = "starting ..."
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            get_renderable=self._drawn, console=Console(highlight=False), refresh_per_second=4, redirect_stdout=False
        )
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._now_line = "" if error is None else "stopped"
            self._live.refresh()
            self._live.__exit__(kind, error, trace)

    def show(self, event: Event) -> None:
        match event["event"]:
            case "status":
                entry = entry_from(event)
                others = [e if e.id != entry.id else entry for e in self._board.participants]
                self._board = self._board.model_copy(update={"participants": tuple(others)})
            case "part":
                self._now_line = line_for(event) or ""
            case _:
                if (line := line_for(event)) is not None and self._live is not None:
                    for piece in wrapped(line, terminal.look(sys.stdout).width):
                        self._live.console.print(piece, markup=False, soft_wrap=True)
        if self._live is not None:
            self._live.refresh()

    def _drawn(self) -> "Text":
        from rich.text import Text

        look = terminal.look(sys.stdout)
        lines = board_lines(self._board, now=_now(), look=look, launched=self._names, agents=self._names, detail=True)
        text = "\n".join(["", *lines, *(("", self._now_line) if self._now_line else ())])
        return Text.from_ansi(text, no_wrap=True, overflow="crop")


def entry_from(event: Event) -> BoardEntry:
    """The board entry that a status event stands for."""
    status = Status.model_validate({key: value for key, value in event.items() if key not in ("event", "participant")})
    return BoardEntry(
        id=str(event["participant"]), connected=True, status=status, received_at=_now().isoformat(), age_seconds=0.0
    )


def line_for(event: Event) -> str | None:
    """What an event says in words; None for events that the table already shows."""
    say = _WORDS.get(str(event["event"]))
    return clean(say(event)) if say else None


def wrapped(line: str, width: int) -> list[str]:
    """A line broken between words, never within one."""
    return textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _started(event: Event) -> str:
    return f"{event['model']} behind {', '.join(event['agents'])}; reading {', '.join(event['files'])}"


def _part(event: Event) -> str:
    return f"{event['participant']} reads {event['source']}, part {event['number']}"


def _ask(event: Event) -> str:
    return f"you ask {event['participant']} to compact ({event['kind']})"


def _done(event: Event) -> str:
    if event.get("skipped"):
        return f"{event['participant']} skipped it: {event.get('reason')}"
    freed, messages = event.get("freed_tokens", 0), event.get("freed_messages", 0)
    return f"{event['participant']} answers: freed {freed:,} tokens, {messages} messages"


def _check(event: Event) -> str:
    why = "because you asked" if event["trigger"] == "requested" else f"by itself ({event['trigger']})"
    announced, reported = event["announced_freed_tokens"], event["reported_freed_tokens"]
    share = abs(event["off_tokens"]) / max(1, reported)
    return (
        f"{event['participant']} compacted {why}: announced {announced:,} tokens freed, its model then reported"
        f" {reported:,} (off by {abs(event['off_tokens']):,}, {share:.1%})"
    )


def _kept(event: Event) -> str:
    return f"the space keeps running in {event['folder']}"


_WORDS: dict[str, Callable[[Event], str]] = {
    "started": _started,
    "part": _part,
    "ask": _ask,
    "compact-done": _done,
    "check": _check,
    "kept": _kept,
}


def _now() -> datetime:
    return datetime.now(UTC).astimezone()
