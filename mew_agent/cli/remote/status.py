"""`mew status`: the board of a space, once or as it changes.

Owns where the board comes from and how often it is drawn; how it looks is `board_table`.
"""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mew_protocol.payloads.participant import Board, BoardEntry

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import Flags
from mew_agent.cli.board.live_board import entry_of, follow
from mew_agent.cli.board.table import board_line, board_lines
from mew_agent.cli.remote.identity import Seat, config_of, take_seat

if TYPE_CHECKING:
    from rich.text import Text


def show_status(flags: Flags, *, watch: bool, as_json: bool) -> int:
    """Print the board. With `watch`, go on until the gateway stops or the user does."""
    seat = take_seat(flags)
    _warn_of_orphans(seat)
    if watch:
        return _watch(seat, as_json=as_json)
    board = Board.model_validate(seat.api.board())
    if as_json:
        for entry in board.participants:
            _print_json(entry)
    else:
        terminal.say_lines(_lines(board, seat, _agents(seat)))
    return terminal.DONE


def _warn_of_orphans(seat: Seat) -> None:
    run = seat.run()
    if run is not None and run.pids.supervisor is not None and not run.is_running(run.pids.supervisor):
        terminal.warn("`mew up` of this space was killed: what ends now stays ended; `mew down` stops the rest")


def _watch(seat: Seat, *, as_json: bool) -> int:
    if as_json or not terminal.is_terminal(sys.stdout):
        return _follow_plainly(seat, as_json=as_json)
    return _redraw(seat)


def _follow_plainly(seat: Seat, *, as_json: bool) -> int:
    """A line for everybody who reports, then a line for each change."""
    board: Board | None = None
    with seat.api.events() as events:
        while True:
            event = events.next()
            board, changed = follow(board, event.name, event.body)
            if board is None or (changed is None and event.name != "board"):
                continue
            shown = board.participants if changed is None else (entry_of(board, changed),)
            for entry in shown:
                if entry is not None and as_json:
                    _print_json(entry)
                elif entry is not None and entry.status is not None:
                    terminal.say(board_line(entry, now=_now(), fault=_faults(seat).get(entry.id)))


def _redraw(seat: Seat) -> int:
    """The table in place. It is drawn again every half second too, because ages grow without any event."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    latest: list[Board] = []
    agents = _agents(seat)

    def drawn() -> "Text":
        text = "\n".join(_lines(latest[-1], seat, agents)) if latest else "waiting for the board ..."
        return Text.from_ansi(text, no_wrap=True, overflow="crop")

    with (
        seat.api.events() as events,
        Live(
            get_renderable=drawn, console=Console(highlight=False), refresh_per_second=2, redirect_stdout=False
        ) as live,
    ):
        board: Board | None = None
        while True:
            event = events.next()
            board, changed = follow(board, event.name, event.body)
            if board is not None and (changed is not None or event.name == "board"):
                latest[:] = [board]
                live.refresh()


def _lines(board: Board, seat: Seat, agents: frozenset[str]) -> list[str]:
    run = seat.run()
    launched = tuple(run.pids.participants) if run else ()
    faults = run.faults() if run else None
    return board_lines(
        board, now=_now(), look=terminal.look(sys.stdout), launched=launched, agents=agents, faults=faults
    )


def _agents(seat: Seat) -> frozenset[str]:
    """Whom space.yaml configures as agents: they have a context, whether they have reported it yet or not."""
    config = config_of(seat)
    return (
        frozenset(name for name, one in config.participants.items() if one.agent is not None) if config else frozenset()
    )


def _faults(seat: Seat) -> dict[str, str]:
    run = seat.run()
    return run.faults() if run else {}


def _print_json(entry: BoardEntry) -> None:
    sys.stdout.write(entry.model_dump_json(by_alias=True, exclude_unset=True) + "\n")
    sys.stdout.flush()


def _now() -> datetime:
    return datetime.now(UTC).astimezone()
