"""`mew status`: the board of a space, once, as it changes, or over time.

Reads the board from the gateway, and decides when to redraw it. `board.table` lays it out.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Annotated, Any, NamedTuple

from mew_board.board_json import Grouping
from mew_board.changes import recorded_line, sample_line
from mew_board.view import ParticipantView
from mew_protocol.envelope import parse_time
from mew_protocol.payloads.attention_items import Attention, AttentionItem
from mew_protocol.payloads.participant import Board, BoardEntry

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import agents_of, people_of
from mew_agent.cli.app.options import OUTPUT, ConnectionOptions, option, participant_argument
from mew_agent.cli.board.board_events import apply_event
from mew_agent.cli.board.needs import attention_line, attention_lines, single_items, with_faults
from mew_agent.cli.board.table import board_line, board_lines
from mew_agent.cli.remote.http_api import MAX_MINUTES, MAX_REPORTS, GatewayApi, SpaceEvents
from mew_agent.cli.remote.identity import configuration_at, find_gateway, find_identity
from mew_agent.cli.remote.sent_request import check_known
from mew_agent.errors import ConfigError


class _Seen(NamedTuple):
    """The board with the gateway's clock, and the attention items of the gateway."""

    board: Board
    clock: Callable[[], datetime]
    items: tuple[AttentionItem, ...]


def show_status(
    target: Annotated[str | None, participant_argument("Show this participant only.")] = None,
    *,
    watch: Annotated[bool, option("--watch, -w", "Keep running, and redraw on each report.")] = False,
    history: Annotated[
        int | None,
        option("--history MINUTES", "Print the reports and compactions of the last MINUTES.", min=1, max=MAX_MINUTES),
    ] = None,
    bell: Annotated[bool, option("--bell", "With --watch, ring the terminal's bell when an agent needs you.")] = False,
    by: Annotated[Grouping | None, option("--by WHAT", "Group the rows by role, model or state.")] = None,
    plain: Annotated[bool, option("--plain", "With --watch: redraw the table only.")] = False,
    connection: ConnectionOptions,
) -> None:
    """Show each agent's context usage and the requests to you.

    With --watch, --json prints one object per change. KNOWN says where a figure comes from; `~` marks an estimate, `?`
    an unknown figure. At a terminal, --watch without a participant opens the full-screen application.
    """
    if bell and not watch:
        raise ConfigError("--bell", "needs --watch", "mew status --watch --bell")
    if history is not None and watch:
        raise ConfigError("--history", "cannot be combined with --watch", "one of the two")
    if watch and not (OUTPUT.is_json or plain or target) and _opens_full_screen(connection, bell=bell):
        return
    api = find_gateway(connection)
    _warn_of_killed_supervisor(api)
    if target is not None:
        check_known(api, api.board(), target)
    if history is not None:
        _print_history(api, history, target)
    elif not watch:
        _print_once(api, by, target)
    elif not OUTPUT.is_json and terminal.is_terminal(sys.stdout):
        _redraw(api, by, target, bell=bell)
    else:
        _print_changes(api, target, bell=bell)


def _warn_of_killed_supervisor(api: GatewayApi) -> None:
    run = api.run()
    if run is not None and run.pids.supervisor is not None and not run.is_running(run.pids.supervisor):
        terminal.warn("`mew up` of this space was killed, so programs are not restarted; `mew down` stops the rest")


def _opens_full_screen(connection: ConnectionOptions, *, bell: bool) -> bool:
    """Run the full-screen application as a person. Returns False without one, or if no person would join."""
    client = terminal.full_screen()
    if client is None:
        return False
    who = find_identity(connection)
    config = configuration_at(who.run_path)
    if config is None or not config.is_person(who.participant):  # joining would replace a program's connection
        return False
    client.open_space(who, start_on="board", bell=bell)
    return True


def _print_once(api: GatewayApi, by: Grouping | None, only: str | None) -> None:
    board = api.board()
    seen = _Seen(board, terminal.clock_of_gateway(board.at), api.attention())
    if not OUTPUT.is_json:
        terminal.print_lines(_lines(seen, api, by, only))
        return
    items = single_items(_with_faults(seen, api))
    shown = [entry for entry in board.participants if only in (None, entry.id)]
    terminal.print_json([_as_json(entry, _items_of(entry.id, items)) for entry in shown])


def _print_history(api: GatewayApi, minutes: int, only: str | None) -> None:
    """Print the stored reports of each participant."""
    found = api.context_history(minutes * 60, only)
    if OUTPUT.is_json:
        terminal.print_json([one.model_dump(mode="json", exclude_unset=True) for one in found.participants])
    for one in () if OUTPUT.is_json else found.participants:
        terminal.print_line(one.id)
        lines = [(sample.at, sample_line(sample)) for sample in one.samples]
        lines += [(compaction.at, recorded_line(compaction)) for compaction in one.compactions]
        for at, line in sorted(lines, key=lambda pair: pair[0]):
            moment = parse_time(at)
            shown = "?" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"
            terminal.print_line(f"  {shown}  {line}")
    if not found.participants:
        terminal.warn("no participant has reported a context window in this time")
    if found.more:
        terminal.warn(f"only the newest {MAX_REPORTS:,} are shown; choose fewer minutes")


def _items_of(name: str | None, items: Iterable[AttentionItem]) -> tuple[AttentionItem, ...]:
    """Return the attention items of a participant (None: of all) and of the space."""
    return tuple(one for one in items if name is None or one.participant in (None, name))


def _as_json(entry: BoardEntry, own: Iterable[AttentionItem]) -> dict[str, Any]:
    """Return an entry as JSON, with its attention items."""
    attention = [one.model_dump(mode="json", exclude_unset=True) for one in own]
    return {**ParticipantView(entry, None).as_json(), "attention": attention}


def _print_changes(api: GatewayApi, only: str | None, *, bell: bool) -> None:
    """Print a line for each participant that has reported, then a line for each change."""
    seen: set[str] = set()
    shown: dict[str, tuple[BoardEntry, tuple[AttentionItem, ...]]] = {}
    with api.events() as events:
        for latest in _views(events):
            items = _items_of(only, _with_faults(latest, api))
            _ring(items, seen, bell=bell)
            for one in items:
                if one.id not in seen and not OUTPUT.is_json:
                    terminal.print_line(attention_line(one, now=latest.clock()))
            seen = {one.id for one in items}
            for entry in latest.board.participants:
                own = _items_of(entry.id, single_items(items)) if OUTPUT.is_json else ()
                if only not in (None, entry.id) or shown.get(entry.id) == (entry, own):
                    continue
                shown[entry.id] = (entry, own)
                if OUTPUT.is_json:
                    terminal.print_json(_as_json(entry, own))
                elif entry.status is not None:
                    terminal.print_line(board_line(entry, now=latest.clock(), ended=_how_ended(entry.id, api)))


def _how_ended(name: str, api: GatewayApi) -> str | None:
    run = api.run()
    return run.ended().get(name) if run else None


def _redraw(api: GatewayApi, by: Grouping | None, only: str | None, *, bell: bool) -> None:
    """Draw the table in place. Redraw twice a second, because ages grow without events."""
    latest: _Seen | None = None

    def lines() -> list[str]:
        return _lines(latest, api, by, only) if latest is not None else ["waiting for the board ..."]

    seen: set[str] = set()
    with api.events() as events, terminal.drawn_in_place(lines, per_second=2) as live:
        for latest in _views(events):
            items = _items_of(only, _with_faults(latest, api))
            _ring(items, seen, bell=bell)
            seen = {one.id for one in items}
            live.refresh()


def _ring(items: Iterable[AttentionItem], seen: set[str], *, bell: bool) -> None:
    """Ring the bell when work is blocked for a new reason."""
    if bell and any(one.level == "blocking" and one.id not in seen for one in items):
        sys.stderr.write("\a")
        sys.stderr.flush()


def _views(events: SpaceEvents) -> Iterator[_Seen]:
    """Yield the board and the attention items after each change. Never ends."""
    board: Board | None = None
    clock = terminal.now
    items: tuple[AttentionItem, ...] = ()
    while True:
        event = events.next()
        before, (board, _) = board, apply_event(board, event.name, event.body)
        if event.name == "attention":
            items = Attention.model_validate(event.body).items
        elif board is before:
            continue
        if board is not None:
            clock = terminal.clock_of_gateway(board.at) if event.name == "board" else clock
            yield _Seen(board, clock, items)


def _with_faults(seen: _Seen, api: GatewayApi) -> tuple[AttentionItem, ...]:
    run = api.run()
    return with_faults(seen.items, seen.board, run.faults() if run else {}, now=seen.clock())


def _lines(seen: _Seen, api: GatewayApi, by: Grouping | None, only: str | None) -> list[str]:
    run, config = api.run(), configuration_at(api.run_path)
    launched = tuple(run.pids.participants) if run else ()
    style, now = terminal.style_of(sys.stdout), seen.clock()
    items = _items_of(only, _with_faults(seen, api))
    heading, *table = board_lines(
        seen.board,
        now=now,
        style=style,
        launched=launched,
        agents=agents_of(config) if config is not None else (),
        people=people_of(config) if config is not None else (),
        ended=run.ended() if run else None,
        items=items,
        by=by,
        only=only,
    )
    return [heading, *attention_lines(items, now=now, style=style), *table]
