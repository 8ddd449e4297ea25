"""[pure] The board of a space as lines of text, fitted to a width.

Owns columns, their order of leaving when the terminal is narrow, and colour; the wording is `board_words`. Knows
neither the terminal nor the clock: width, colour and time come as arguments.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from mew_protocol.payloads.participant import Board, BoardEntry

from mew_agent.cli.board import words as say

_GAP: Final = "   "
_NARROW_GAP: Final = "  "
_INDENT: Final = "  "
_COLOURS: Final[Mapping[int | None, str]] = {0: "32", 1: "33", 2: "1;33", 3: "1;31", None: "2"}
_BOLD: Final = "1"


@dataclass(frozen=True, slots=True)
class Look:
    """What the terminal can show. `width` in columns; without `unicode` everything drawn is ASCII."""

    width: int = 80
    colour: bool = False
    unicode: bool = True

    @property
    def mark(self) -> str:
        """What stands for text that was cut off."""
        return "…" if self.unicode else "."


@dataclass(frozen=True, slots=True)
class _Row:
    entry: BoardEntry
    now: datetime
    fault: str | None
    is_quiet: bool = False
    """It reports no context, and nothing says that it should: a tool, a bridge, a keeper."""

    @property
    def remarks(self) -> list[str]:
        return say.remarks(self.entry, now=self.now, fault=self.fault)


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    figure: Callable[[_Row, Look], str]
    align: Literal["left", "right"] = "left"
    coloured: bool = False
    quiet: str | None = "-"
    """What stands there for somebody without a context; None: the same as for anybody."""

    def text(self, row: _Row, look: Look) -> str:
        """The cell of a row."""
        return self.quiet if row.is_quiet and self.quiet is not None else self.figure(row, look)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Columns side by side; with `notes`, what they cannot say stands in a line of its own below the row."""

    columns: tuple[_Column, ...]
    gap: str = _GAP
    notes: bool = False


def board_lines(
    board: Board,
    *,
    now: datetime,
    look: Look,
    launched: Sequence[str] = (),
    agents: Collection[str] = (),
    faults: Mapping[str, str] | None = None,
    detail: bool = False,
) -> list[str]:
    """The board as lines of at most `look.width` columns.

    Somebody who never reported is a row only if `launched` names them: they are a program, not a person. Of them only
    `agents` are expected to report a context; who has none stands below with `-`. Rows stand in the order of
    `launched`, whoever joined again in between. `faults` says per participant what is wrong with its program. `detail`
    adds level and messages where there is room. `now` carries the zone times are shown in.
    """
    faults = faults or {}
    rows = [
        _Row(entry, now, faults.get(entry.id), is_quiet=entry.id not in agents and not say.has_context(entry.status))
        for entry in board.participants
        if entry.status is not None or entry.id in launched or entry.id in faults
    ]
    places = {name: place for place, name in enumerate(launched)}
    rows.sort(key=lambda row: (row.is_quiet, places.get(row.entry.id, len(places))))
    heading = _paint(say.clip(_heading(board, now, look), look.width, mark=look.mark), _BOLD, look)
    if not rows:
        return [heading, say.clip("nobody here reports a context window yet", look.width, mark=look.mark)]
    return [heading, *_table(rows, look, detail=detail)]


def board_line(entry: BoardEntry, *, now: datetime, fault: str | None = None) -> str:
    """One participant as one line with its time, for output that is not redrawn."""
    return f"{now:%H:%M:%S}  {say.sentence(entry, now=now, fault=fault)}"


def _heading(board: Board, now: datetime, look: Look) -> str:
    here = sum(entry.connected for entry in board.participants)
    everybody = len(board.participants)
    count = f"{everybody}" if here == everybody else f"{here} of {everybody}"
    dot = " · " if look.unicode else " - "
    return dot.join((say.clean(board.space), f"{count} member{'' if everybody == 1 else 's'}", f"{now:%H:%M:%S}"))


def _table(rows: list[_Row], look: Look, *, detail: bool) -> list[str]:
    layouts = list(_layouts(with_state=any(row.remarks for row in rows), detail=detail))
    layout = next((one for one in layouts if _width(one, rows, look) <= look.width), layouts[-1])
    widths = [_column_width(column, rows, look) for column in layout.columns]
    lines = [_join([column.title for column in layout.columns], widths, layout, look)]
    for row in rows:
        texts = [column.text(row, look) for column in layout.columns]
        lines.append(_join(texts, widths, layout, look, row))
        if layout.notes:
            colour = _COLOURS[say.severity(row.entry.status)]
            lines += [_paint(line, colour, look) for line in _notes(row, layout, look)]
    return lines


def _notes(row: _Row, layout: _Layout, look: Look) -> list[str]:
    """What the columns above leave out: why a figure is missing, and the state. Broken between remarks only."""
    untold = _FILL_COLUMNS.isdisjoint(layout.columns)
    untold = untold and not row.is_quiet and say.percent(row.entry.status) is None
    why = [say.reason(row.entry.status)] if untold else []
    lines: list[str] = []
    for remark in [*why, *row.remarks]:
        longer = f"{lines[-1]}, {remark}" if lines else _INDENT + remark
        if lines and say.cells(longer) > look.width:
            lines.append(_INDENT + remark)
        else:
            lines[-1:] = [longer]
    return [say.clip(line, look.width, mark=look.mark) for line in lines]


def _join(texts: list[str], widths: list[int], layout: _Layout, look: Look, row: _Row | None = None) -> str:
    """One line. Colour goes on last and only around whole cells, so that it never counts as width."""
    parts: list[str] = []
    room = look.width
    for position, (text, width, column) in enumerate(zip(texts, widths, layout.columns, strict=True)):
        gap = layout.gap if position else ""
        shown = say.clip(text, min(width, max(0, room - len(gap))), mark=look.mark)
        blank = " " * max(0, min(width, room - len(gap)) - say.cells(shown))
        room -= len(gap) + say.cells(shown) + len(blank)
        if row is not None and column.coloured:
            shown = _paint(shown, _COLOURS[say.severity(row.entry.status)], look)
        parts.append(gap + (blank + shown if column.align == "right" else shown + blank))
        if room <= 0:
            break
    return "".join(parts).rstrip()


def _paint(text: str, code: str, look: Look) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if look.colour and text else text


def _width(layout: _Layout, rows: Iterable[_Row], look: Look) -> int:
    rows = list(rows)
    return sum(_column_width(column, rows, look) for column in layout.columns) + len(layout.gap) * (
        len(layout.columns) - 1
    )


def _column_width(column: _Column, rows: list[_Row], look: Look) -> int:
    return max(say.cells(text) for text in (column.title, *(column.text(row, look) for row in rows)))


def _bar(row: _Row, look: Look, size: int) -> str:
    status = row.entry.status
    fill = say.percent(status)
    if fill is None or status is None or status.tokens is None or status.max_tokens is None:
        return say.reason(status)
    # A reported figure is drawn solid, an estimate hatched, as on the dashboard.
    solid, hatched, empty = ("█", "▒", "░") if look.unicode else ("#", "+", ".")
    full = min(size, size * status.tokens // status.max_tokens)
    drawn = (solid if say.basis(status) == "reported" else hatched) * full
    return f"{drawn}{empty * (size - full)} {fill:>3}%"


def _share(row: _Row, _: Look) -> str:
    fill = say.percent(row.entry.status)
    return "?" if fill is None else f"{fill}%"


def _name(most: int) -> _Column:
    return _Column(
        "PARTICIPANT"[:most], lambda row, look: say.clip(say.clean(row.entry.id), most, mark=look.mark), quiet=None
    )


_FIGURE = _Column(
    "TOKENS", lambda row, _: f"{say.tokens(row.entry.status)} of {say.window(row.entry.status)}", align="right"
)
_SHORT_FIGURE = _Column("TOKENS", lambda row, _: say.tokens(row.entry.status), align="right")
_WIDE_BAR = _Column("WINDOW", lambda row, look: _bar(row, look, 20), coloured=True, quiet=say.NO_CONTEXT)
_SMALL_BAR = _Column("WINDOW", lambda row, look: _bar(row, look, 10), coloured=True, quiet="no context")
_SHARE = _Column("FULL", _share, align="right", coloured=True)
_KNOWN = _Column("KNOWN", lambda row, _: say.basis(row.entry.status))
_NEXT = _Column(
    "NEXT CALL",
    lambda row, _: say.next_call(row.entry.status.context if row.entry.status else None),
    align="right",
)
_COMPACTS = _Column("COMPACTS IN", lambda row, _: say.compacts_in(row.entry.status))
_LAST = _Column(
    "LAST COMPACTION",
    lambda row, _: say.last_compaction(row.entry.status.context if row.entry.status else None, row.now),
)
_LEVEL = _Column("LEVEL", lambda row, _: say.level(row.entry.status), coloured=True)
_MESSAGES = _Column("MESSAGES", lambda row, _: say.messages(row.entry.status), align="right")
_STATE = _Column("STATE", lambda row, _: ", ".join(row.remarks), coloured=True, quiet=None)
_FILL_COLUMNS = frozenset({_WIDE_BAR, _SMALL_BAR})


def _layouts(*, with_state: bool, detail: bool = False) -> Iterable[_Layout]:
    """From the fullest to the barest. How a figure is known never leaves; the bar and the trend leave first."""
    if detail:
        story = (_name(24), _FIGURE, _SMALL_BAR, _KNOWN, _LEVEL, _MESSAGES, _COMPACTS, _LAST)
        yield _Layout(story, _GAP)
        yield _Layout(story, _NARROW_GAP)
        yield _Layout((_name(24), _FIGURE, _SMALL_BAR, _KNOWN, _LEVEL, _MESSAGES, _COMPACTS), _NARROW_GAP, notes=True)
    full = (_name(32), _FIGURE, _WIDE_BAR, _KNOWN, _NEXT, _COMPACTS, _LAST)
    yield _Layout((*full, _STATE) if with_state else full)
    for columns, gap in (
        (full, _GAP),
        ((_name(24), _FIGURE, _SMALL_BAR, _KNOWN, _NEXT, _COMPACTS, _LAST), _NARROW_GAP),
        ((_name(24), _FIGURE, _SMALL_BAR, _KNOWN, _COMPACTS, _LAST), _NARROW_GAP),
        ((_name(24), _FIGURE, _SMALL_BAR, _KNOWN, _COMPACTS), _NARROW_GAP),
        ((_name(20), _FIGURE, _SMALL_BAR, _KNOWN), _NARROW_GAP),
        ((_name(16), _FIGURE, _SHARE, _KNOWN), _NARROW_GAP),
        ((_name(16), _SHORT_FIGURE, _SHARE, _KNOWN), _NARROW_GAP),
        ((_name(8), _SHORT_FIGURE, _KNOWN), _NARROW_GAP),
    ):
        yield _Layout(columns, gap, notes=True)
