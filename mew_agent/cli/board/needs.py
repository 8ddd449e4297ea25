"""[pure] Lays out attention items above the board: reason, age, and useful commands.

Owns the lines and their colours. `mew_board.attention` decides which items need a person. This module adds only faults
of programs, since the gateway does not know why a program ended.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from mew_board import words
from mew_board.attention import aggregate, entry_items, sort_items
from mew_board.figures import span
from mew_board.quoting import clean
from mew_board.view import SEVERITIES
from mew_protocol.envelope import parse_time
from mew_protocol.payloads.attention_items import AttentionItem, AttentionLevel
from mew_protocol.payloads.participant import Board

from mew_agent.cli.board.table import COLOURS, TerminalStyle, paint

_TITLES: Final[Mapping[AttentionLevel, str]] = {"blocking": "NEEDS YOU", "warning": "WARNING", "notice": "SOON"}
_GAP: Final = "   "
_INDENT: Final = len("NEEDS YOU") + len(_GAP)
_NARROW: Final = 70
"""In fewer columns the text begins below its title."""


def single_items(items: Iterable[AttentionItem]) -> list[AttentionItem]:
    """Return one item per cause: the members of a group instead of the group."""
    return [inner for one in items for inner in (one.items or (one,))]


def with_faults(
    items: Iterable[AttentionItem], board: Board, faults: Mapping[str, str], *, now: datetime
) -> tuple[AttentionItem, ...]:
    """Add the faults of participants' programs. A fault replaces the item "not connected"."""
    found = [one for one in single_items(items) if one.kind != "disconnected" or one.participant not in faults]
    for entry in board.participants:
        if entry.id in faults:
            found += entry_items(entry, now=now, fault=faults[entry.id])
    return aggregate(sort_items(found))


def attention_lines(items: Sequence[AttentionItem], *, now: datetime, style: TerminalStyle) -> list[str]:
    """Lay items out as lines of at most `style.width` columns; a title stands before the first of each level."""
    is_narrow = style.width < _NARROW
    indent = 2 if is_narrow else _INDENT
    lines: list[str] = []
    shown: AttentionLevel | None = None
    for one in items:
        title = _TITLES[one.level] if one.level != shown else ""
        shown = one.level
        rows = [" " * indent + row for row in _wrapped(_texts(one, now), max(1, style.width - indent), style)]
        painted = paint(words.clip(title, style.width, mark=style.mark), COLOURS[SEVERITIES[one.level]], style)
        if title and is_narrow:
            lines.append(painted)
        elif title:
            rows[0] = painted + rows[0][len(title) :]
        lines += rows
    return lines


def attention_line(item: AttentionItem, *, now: datetime) -> str:
    """Return an item as one line, for output that is not redrawn."""
    return f"{now:%H:%M:%S}  {_TITLES[item.level]}: {'  '.join(_texts(item, now))}"


def _texts(item: AttentionItem, now: datetime) -> list[str]:
    """Return the parts of an item that share a line if they fit: its text, then its commands."""
    since = parse_time(item.since)
    age = "" if since is None else f", {span((now - since).total_seconds())}"
    return [f"{clean(item.reason)}{age}", *(clean(one.command) for one in item.actions if one.command)]


def _wrapped(texts: list[str], width: int, style: TerminalStyle) -> Iterator[str]:
    """Wrap a sentence between words, and add the commands that fit on its line."""
    line = ""
    sentence, *commands = texts
    for gap, piece in (*((" ", word) for word in sentence.split()), *((_GAP, command) for command in commands)):
        longer = f"{line}{gap}{piece}" if line else piece
        if line and words.cells(longer) > width:
            yield line
            longer = piece
        line = words.clip(longer, width, mark=style.mark)
    yield line
