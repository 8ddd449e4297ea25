"""Shows the demo: as a live table in a terminal, as plain lines elsewhere, as JSON Lines on request.

Each view receives the events of the demo one by one. Knows neither the gateway nor the agents.
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

DemoEvent = Mapping[str, Any]


class DemoView(Protocol):
    """A way to show events."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, event: DemoEvent) -> None:
        """Show one event."""
        ...


def view_for(*, as_json: bool, names: tuple[str, ...]) -> DemoView:
    """Choose the view for standard output. `names` are the agents, in the order of their rows."""
    if as_json:
        return JsonLines()
    if terminal.is_terminal(sys.stdout):
        return LiveTable(names)
    return PlainLines()


class _Lines:
    """A view without resources to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class JsonLines(_Lines):
    """Prints one JSON object per event."""

    def show(self, event: DemoEvent) -> None:
        sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
        sys.stdout.flush()


class PlainLines(_Lines):
    """Prints one line per event that matters in a log."""

    def show(self, event: DemoEvent) -> None:
        if event["event"] == "status":
            terminal.print_line(board_line(entry_from(event), now=_now()))
        elif (line := line_for(event)) is not None:
            terminal.print_line(f"{_now():%H:%M:%S}  {line}")


class LiveTable:
    """Redraws the board in place, and prints the most important events above it."""

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
            get_renderable=self._draw, console=Console(highlight=False), refresh_per_second=4, redirect_stdout=False
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

    def show(self, event: DemoEvent) -> None:
        match event["event"]:
            case "status":
                entry = entry_from(event)
                others = [e if e.id != entry.id else entry for e in self._board.participants]
                self._board = self._board.model_copy(update={"participants": tuple(others)})
            case "part":
                self._now_line = line_for(event) or ""
            case _:
                if (line := line_for(event)) is not None and self._live is not None:
                    for piece in wrap(line, terminal.style_of(sys.stdout).width):
                        self._live.console.print(piece, markup=False, soft_wrap=True)
        if self._live is not None:
            self._live.refresh()

    def _draw(self) -> "Text":
        from rich.text import Text

        style = terminal.style_of(sys.stdout)
        lines = board_lines(self._board, now=_now(), style=style, launched=self._names, agents=self._names, detail=True)
        text = "\n".join(["", *lines, *(("", self._now_line) if self._now_line else ())])
        return Text.from_ansi(text, no_wrap=True, overflow="crop")


def entry_from(event: DemoEvent) -> BoardEntry:
    """The board entry for a status event."""
    status = Status.model_validate({key: value for key, value in event.items() if key not in ("event", "participant")})
    return BoardEntry(
        id=str(event["participant"]), connected=True, status=status, received_at=_now().isoformat(), age_seconds=0.0
    )


def line_for(event: DemoEvent) -> str | None:
    """An event as a sentence; None for events that the table already shows."""
    describe = _SENTENCES.get(str(event["event"]))
    return clean(describe(event)) if describe else None


def wrap(line: str, width: int) -> list[str]:
    """Wrap a line between words."""
    return textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _started(event: DemoEvent) -> str:
    return f"{', '.join(event['agents'])} use {event['model']} and read {', '.join(event['files'])}"


def _part(event: DemoEvent) -> str:
    return f"{event['participant']} reads {event['source']}, part {event['number']}"


def _ask(event: DemoEvent) -> str:
    return f"you ask {event['participant']} to compact ({event['kind']})"


def _done(event: DemoEvent) -> str:
    if event.get("skipped"):
        return f"{event['participant']} skipped the compaction: {event.get('reason')}"
    freed, messages = event.get("freed_tokens", 0), event.get("freed_messages", 0)
    return f"{event['participant']} answers: freed {freed:,} tokens, {messages} messages"


def _check(event: DemoEvent) -> str:
    why = "on request" if event["trigger"] == "requested" else f"by itself ({event['trigger']})"
    announced, reported = event["announced_freed_tokens"], event["reported_freed_tokens"]
    share = abs(event["off_tokens"]) / max(1, reported)
    return (
        f"{event['participant']} compacted {why}: announced {announced:,} tokens freed, its model then reported"
        f" {reported:,} (off by {abs(event['off_tokens']):,}, {share:.1%})"
    )


def _kept(event: DemoEvent) -> str:
    return f"the space keeps running in {event['folder']}"


_SENTENCES: dict[str, Callable[[DemoEvent], str]] = {
    "started": _started,
    "part": _part,
    "ask": _ask,
    "compact-done": _done,
    "check": _check,
    "kept": _kept,
}


def _now() -> datetime:
    return datetime.now(UTC).astimezone()
