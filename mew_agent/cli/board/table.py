"""[pure] Lays out the board of a space as lines of text that fit a width.

Owns the columns, the order in which they are dropped on a narrow terminal, and colour. The wording is `words`. Width,
colour and time come as arguments.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from mew_board import words
from mew_board.board_json import Grouping
from mew_board.grouping import SEVERAL, grouped, total, totals
from mew_board.quoting import clean
from mew_board.view import ParticipantView, views_of
from mew_protocol.payloads.attention_items import AttentionItem
from mew_protocol.payloads.participant import Board, BoardEntry, Status

# Not rich's Table: it shrinks and wraps columns where this one drops whole columns in a fixed order, it cannot put a
# row's remarks on a separate line across the columns, and importing it would double the time of `mew status`.

_GAP: Final = "   "
_NARROW_GAP: Final = "  "
_INDENT: Final = "  "
COLOURS: Final[Mapping[int | None, str]] = {0: "32", 1: "33", 2: "1;33", 3: "1;31", None: "2"}
"""The colour of each severity, as a code of the terminal."""

_BOLD: Final = "1"


@dataclass(frozen=True, slots=True)
class TerminalStyle:
    """The abilities of a terminal. `width` is in columns; without `unicode` everything drawn is ASCII."""

    width: int = 80
    colour: bool = False
    unicode: bool = True

    @property
    def mark(self) -> str:
        """The mark for text that was cut off."""
        return "…" if self.unicode else "."


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    figure: Callable[[ParticipantView, TerminalStyle], str]
    align: Literal["left", "right"] = "left"
    coloured: bool = False
    quiet: str | None = "-"
    """The cell of a participant without a context; None means the same as for all others."""

    def text(self, row: ParticipantView, style: TerminalStyle) -> str:
        """Return the cell of a row."""
        return self.quiet if row.is_quiet and self.quiet is not None else self.figure(row, style)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Columns side by side. With `notes`, remarks follow on a line below their row."""

    columns: tuple[_Column, ...]
    gap: str = _GAP
    notes: bool = False


def board_lines(
    board: Board,
    *,
    now: datetime,
    style: TerminalStyle,
    launched: Collection[str] = (),
    agents: Collection[str] = (),
    people: Collection[str] = (),
    ended: Mapping[str, str] | None = None,
    items: Iterable[AttentionItem] = (),
    by: Grouping | None = None,
    only: str | None = None,
) -> list[str]:
    """Lay out the board as lines of at most `style.width` columns.

    A participant that never reported gets a row only if `launched` names it, since people do not report. `only` names
    one participant: it alone gets a row. Participants outside `agents` without a context have `-` in each cell. The
    attention `items` decide the urgency of a row. `ended` says, by participant, how ended programs ended. `by` groups
    the rows; a group's title also counts participants without a row. `now` carries the time zone to show.
    """
    everyone = views_of(board, now=now, agents=agents, people=people, ended=ended, items=items)
    rows = [row for row in everyone if row.status is not None or row.id in launched or row.ended is not None]
    if only is not None:
        rows = everyone = [row for row in everyone if row.id == only]
    lines = [paint(words.clip(_heading(board, now, style), style.width, mark=style.mark), _BOLD, style)]
    if not rows:
        nothing = "no participant has reported a context window yet"
        return [*lines, words.clip(nothing, style.width, mark=style.mark)]
    sums = totals(total(rows))
    if sums.agents >= SEVERAL:
        lines.append(words.clip(_in_style(sums.text, style), style.width, mark=style.mark))
    return lines + _table(rows, _titles(everyone, by), style, by=by)


def board_line(entry: BoardEntry, *, now: datetime, ended: str | None = None) -> str:
    """Return a participant as one line with a timestamp, for output that is not redrawn."""
    return f"{now:%H:%M:%S}  {ParticipantView(entry, now, ended).sentence}"


def _heading(board: Board, now: datetime, style: TerminalStyle) -> str:
    connected = sum(entry.connected for entry in board.participants)
    total = len(board.participants)
    members = words.count_of(total, "member")
    count = members if connected == total else f"{connected} of {members}"
    dot = " · " if style.unicode else " - "
    return dot.join((clean(board.space), count, f"{now:%H:%M:%S}"))


def _in_style(text: str, style: TerminalStyle) -> str:
    return text if style.unicode else text.replace(" · ", " - ")


def _titles(everyone: Iterable[ParticipantView], by: Grouping | None) -> dict[str, str]:
    """Return the title of each group, by its name."""
    return {} if by is None else {group.name: group.title for group in grouped(everyone, by)}


def _table(
    rows: list[ParticipantView],
    titles: Mapping[str, str],
    style: TerminalStyle,
    *,
    by: Grouping | None,
) -> list[str]:
    layout, widths = _fitting_layout(rows, style)
    lines = [_join([column.title for column in layout.columns], widths, layout, style)]
    if by is None:
        return lines + [line for row in rows for line in _row(row, widths, layout, style)]
    for group in grouped(rows, by):
        lines.append(paint(words.clip(titles[group.name], style.width, mark=style.mark), _BOLD, style))
        lines += [line for row in group.rows for line in _row(row, widths, layout, style)]
    return lines


def _row(row: ParticipantView, widths: list[int], layout: _Layout, style: TerminalStyle) -> list[str]:
    """Return the line of a row and its notes."""
    texts = [column.text(row, style) for column in layout.columns]
    notes = _notes(row, layout, style) if layout.notes else []
    return [_join(texts, widths, layout, style, row), *(paint(line, COLOURS[row.severity], style) for line in notes)]


def _fitting_layout(rows: Sequence[ParticipantView], style: TerminalStyle) -> tuple[_Layout, list[int]]:
    """Return the first layout that fits (else the narrowest) and its column widths."""
    widths: list[int] = []
    has_unread = any(row.unread for row in rows)
    for layout in _layouts(with_state=any(row.remarks for row in rows), with_unread=has_unread):
        cells = [(column.title, *(column.text(row, style) for row in rows)) for column in layout.columns]
        widths = [max(map(words.cells, one)) for one in cells]
        if sum(widths) + len(layout.gap) * (len(widths) - 1) <= style.width:
            break
    return layout, widths


def _notes(row: ParticipantView, layout: _Layout, style: TerminalStyle) -> list[str]:
    """Return lines with the reason of a missing figure and the state. Break lines only between remarks."""
    is_unknown = not row.is_quiet and row.percent is None
    why = [row.reason] if is_unknown and _FILL_COLUMNS.isdisjoint(layout.columns) else []
    lines: list[str] = []
    for remark in [*why, *row.remarks]:
        longer = f"{lines[-1]}, {remark}" if lines else _INDENT + remark
        if lines and words.cells(longer) > style.width:
            lines.append(_INDENT + remark)
        else:
            lines[-1:] = [longer]
    return [words.clip(line, style.width, mark=style.mark) for line in lines]


def _join(
    texts: list[str], widths: list[int], layout: _Layout, style: TerminalStyle, row: ParticipantView | None = None
) -> str:
    """Join cells into a line. Colour is added last and around whole cells, so that it never counts as width."""
    parts: list[str] = []
    room = style.width
    for position, (text, width, column) in enumerate(zip(texts, widths, layout.columns, strict=True)):
        gap = layout.gap if position else ""
        shown = words.clip(text, min(width, max(0, room - len(gap))), mark=style.mark)
        blank = " " * max(0, min(width, room - len(gap)) - words.cells(shown))
        room -= len(gap) + words.cells(shown) + len(blank)
        if row is not None and column.coloured:
            shown = paint(shown, COLOURS[row.severity], style)
        parts.append(gap + (blank + shown if column.align == "right" else shown + blank))
        if room <= 0:
            break
    return "".join(parts).rstrip()


def paint(text: str, code: str, style: TerminalStyle) -> str:
    """Colour a text with one of `COLOURS`, if the terminal has colours."""
    return f"\x1b[{code}m{text}\x1b[0m" if style.colour and text else text


def _bar(row: ParticipantView, style: TerminalStyle, size: int) -> str:
    if row.status is not None and row.last_percent is not None:
        return f"{gauge(row.status, size, style)} {row.reason}"
    if row.percent is None or row.status is None:
        return row.reason
    return f"{gauge(row.status, size, style)} {row.share:>4}"


def gauge(status: Status, size: int, style: TerminalStyle, *, with_limit: bool = False) -> str:
    """Draw how full the window is, in `size` cells; `with_limit` marks where the agent compacts.

    Needs the window size, and a current or last figure.
    """
    last = words.last_tokens(status)
    tokens = status.tokens if last is None else last
    assert tokens is not None
    assert status.max_tokens is not None
    # Solid for a reported figure, hatched for an estimate, as on the dashboard; a line for a figure from before a
    # restart.
    solid, hatched, past, empty, mark = ("█", "▒", "┄", "░", "┃") if style.unicode else ("#", "+", "-", ".", "|")
    full = min(size, size * tokens // status.max_tokens)
    filled = {"solid": solid, "past": past}.get(words.pattern(status), hatched)
    drawn = filled * full + empty * (size - full)
    limit = status.context.compact_at_tokens if with_limit and status.context is not None else None
    if limit is None or limit >= status.max_tokens:
        return drawn
    at = min(size - 1, size * limit // status.max_tokens)
    return drawn[:at] + mark + drawn[at + 1 :]


def _name(most: int) -> _Column:
    return _Column("PARTICIPANT"[:most], lambda row, style: words.clip(row.name, most, mark=style.mark), quiet=None)


_FIGURE = _Column("TOKENS", lambda row, _: row.figure, align="right")
_SHORT_FIGURE = _Column("TOKENS", lambda row, _: row.amount, align="right")
_WIDE_BAR = _Column("WINDOW", lambda row, style: _bar(row, style, 20), coloured=True, quiet=words.NO_CONTEXT)
_SMALL_BAR = _Column("WINDOW", lambda row, style: _bar(row, style, 10), coloured=True, quiet="no context")
_SHARE = _Column("FULL", lambda row, _: row.share, align="right", coloured=True)
_KNOWN = _Column("KNOWN", lambda row, _: row.source)
_NEXT = _Column("NEXT CALL", lambda row, _: words.next_call(row.report), align="right")
_COMPACTS = _Column("COMPACTS IN", lambda row, _: words.compacts_in(row.entry))
_UNREAD = _Column("UNREAD", lambda row, _: row.unread or "-", align="right")
_LAST = _Column("LAST COMPACTION", lambda row, _: words.last_compaction(row.report, row.now))
_STATE = _Column("STATE", lambda row, _: ", ".join(row.remarks), coloured=True, quiet=None)
_FILL_COLUMNS = frozenset({_WIDE_BAR, _SMALL_BAR})


def _layouts(*, with_state: bool, with_unread: bool) -> Iterable[_Layout]:
    """Layouts from wide to narrow. Never drop the basis of a figure; drop the bar and the trend first."""
    unread = (_UNREAD,) if with_unread else ()
    full = (_name(32), _FIGURE, _WIDE_BAR, _KNOWN, *unread, _NEXT, _COMPACTS, _LAST)
    yield _Layout((*full, _STATE) if with_state else full)
    for columns, gap in (
        (full, _GAP),
        ((_name(24), _FIGURE, _SMALL_BAR, _KNOWN, *unread, _NEXT, _COMPACTS, _LAST), _NARROW_GAP),
        ((_name(24), _FIGURE, _SMALL_BAR, _KNOWN, *unread, _COMPACTS, _LAST), _NARROW_GAP),
        ((_name(24), _FIGURE, _SMALL_BAR, _KNOWN, *unread, _COMPACTS), _NARROW_GAP),
        ((_name(20), _FIGURE, _SMALL_BAR, _KNOWN), _NARROW_GAP),
        ((_name(16), _FIGURE, _SHARE, _KNOWN), _NARROW_GAP),
        ((_name(16), _SHORT_FIGURE, _SHARE, _KNOWN), _NARROW_GAP),
        ((_name(8), _SHORT_FIGURE, _KNOWN), _NARROW_GAP),
    ):
        yield _Layout(columns, gap, notes=True)
