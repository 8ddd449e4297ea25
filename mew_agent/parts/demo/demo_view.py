"""Shows the demo: as a live table in a terminal, as plain lines elsewhere, as JSON Lines on request.

Each view receives the events of the demo one by one. Knows neither the gateway nor the agents.
"""

import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mew_board.quoting import clean
from mew_board.words import compaction
from mew_protocol.payloads.participant import Board, BoardEntry, CompactDone, Status

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import OUTPUT
from mew_agent.cli.board.table import board_line, board_lines

DemoEvent = Mapping[str, Any]
Show = Callable[[DemoEvent], None]


@contextmanager
def shown(names: tuple[str, ...]) -> Iterator[Show]:
    """Show events on standard output while the block runs. `names` are the agents, in the order of their rows."""
    if OUTPUT.is_json:
        yield terminal.print_json
    elif terminal.is_terminal(sys.stdout):
        with live_table(names) as show:
            yield show
    else:
        yield print_plainly


def print_plainly(event: DemoEvent) -> None:
    """Print a line for an event that is worth logging."""
    if event["event"] == "status":
        terminal.print_line(board_line(entry_from(event), now=terminal.now()))
    elif (line := line_for(event)) is not None:
        terminal.print_line(f"{terminal.now():%H:%M:%S}  {line}")


@contextmanager
def live_table(names: tuple[str, ...]) -> Iterator[Show]:
    """Redraw the board in place, and print the most important events above it."""
    present = {"you": True, **dict.fromkeys(names, False)}
    entries = {name: BoardEntry(id=name, connected=is_present) for name, is_present in present.items()}
    last_line = "starting ..."

    def lines() -> list[str]:
        board = Board(space="demo", at=terminal.now().isoformat(), participants=tuple(entries.values()))
        style = terminal.style_of(sys.stdout)
        table = board_lines(board, now=terminal.now(), style=style, launched=names, agents=names)
        return ["", *table, *(("", last_line) if last_line else ())]

    def show(event: DemoEvent) -> None:
        nonlocal last_line
        match event["event"]:
            case "status":
                entries[event["participant"]] = entry_from(event)
            case "part":
                last_line = line_for(event) or ""
            case _:
                for piece in wrap(line_for(event) or "", terminal.style_of(sys.stdout).width):
                    live.console.print(piece, markup=False, soft_wrap=True)
        live.refresh()

    with terminal.drawn_in_place(lines, per_second=4) as live:
        try:
            yield show
        except BaseException:
            last_line = "stopped"
            raise
        else:
            last_line = ""
        finally:
            live.refresh()


def entry_from(event: DemoEvent) -> BoardEntry:
    """Return the board entry for a status event."""
    status = Status.model_validate({key: value for key, value in event.items() if key not in ("event", "participant")})
    return BoardEntry(
        id=str(event["participant"]),
        connected=True,
        status=status,
        received_at=terminal.now().isoformat(),
        age_seconds=0.0,
    )


def line_for(event: DemoEvent) -> str | None:
    """Return an event as a sentence; None for events that the table already shows."""
    describe = _SENTENCES.get(str(event["event"]))
    return clean(describe(event)) if describe else None


def wrap(line: str, width: int) -> list[str]:
    """Wrap a line between words."""
    return textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _check(event: DemoEvent) -> str:
    return (
        f"{event['participant']} compacted {cause_of(event['trigger'])}: freed {event['freed_tokens']:,} tokens;"
        f" after the next question {event['expected_tokens']:,} were expected, its model reported"
        f" {event['reported_tokens']:,}: off by {event['off']}"
    )


def cause_of(trigger: str) -> str:
    """Return why a compaction was made."""
    return "on request" if trigger == "requested" else f"automatically ({trigger})"


_SENTENCES: dict[str, Callable[[DemoEvent], str]] = {
    "started": lambda event: f"{', '.join(event['agents'])} use {event['model']} and read {', '.join(event['files'])}",
    "part": lambda event: f"{event['participant']} reads {event['source']}, part {event['number']}",
    "ask": lambda event: f"you ask {event['participant']} to compact ({event['kind']})",
    "compact-done": lambda event: f"{event['participant']} answers: {compaction(CompactDone.model_validate(event))}",
    "check": _check,
    "kept": lambda event: f"the space keeps running in {event['folder']}",
}
