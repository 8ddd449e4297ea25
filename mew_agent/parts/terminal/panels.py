"""[pure] The panels of the terminal application, as lines of styled text that fit a width.

Owns only the layout; `mew_board.words` has the wording. Styles are names of the application's theme. Width and time
come as arguments.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mew_board import changes, words
from mew_board.board_json import Tone
from mew_board.grouping import SEVERAL, total, totals
from mew_board.proposal_text import argument_lines, call_text
from mew_board.quoting import clean
from mew_board.view import ParticipantView
from mew_protocol.envelope import Envelope, parse_time
from mew_protocol.payloads.attention_items import AttentionItem, AttentionLevel
from mew_protocol.payloads.context_history import FigureSample, ParticipantFigures
from mew_protocol.payloads.participant import BoardEntry, PrefixPart

from mew_agent.cli.board.table import TerminalStyle, gauge
from mew_agent.parts.shared.composition_lines import composition_lines

Segment = tuple[str, str]
"""A text and its style: `""`, `dim`, `bold`, or one of `STYLES`."""
Line = tuple[Segment, ...]

STYLES: Final[Mapping[int | None, str]] = {0: "calm", 1: "warn", 2: "warn", 3: "alarm", None: "dim"}
LEVEL_STYLES: Final[Mapping[AttentionLevel, str]] = {"blocking": "alarm", "warning": "warn", "notice": ""}

_MARKS: Final[Mapping[AttentionLevel, str]] = {"blocking": "! ", "warning": "- ", "notice": "  "}

COMPACT_ABOVE: Final = 12
"""With more participants, each takes one line."""

_NAME_CELLS: Final = 14
_FACT_CELLS: Final = 16
_BLOCKS: Final = {True: ("▁▂▃▄▅▆▇█", "╎"), False: ("_.-=+*#@", "!")}
"""The blocks of a sparkline, and its mark of a compaction, for a terminal with Unicode and without."""


def attention_line(item: AttentionItem, now: datetime, width: int) -> Line:
    """Return an attention item with its age: `! coder waits for approval of write_file, 12 s`."""
    age = words.ago(item.since, now)
    tail = f", {age.removesuffix(' ago')}" if age else ""
    reason = words.clip(clean(item.reason), max(8, width - 2 - len(tail)))
    return ((_MARKS[item.level] + reason, LEVEL_STYLES[item.level]), (tail, "dim"))


def matching(shown: Sequence[ParticipantView], wanted: str) -> list[ParticipantView]:
    """Return the participants that match a search; all if `wanted` is empty."""
    return [one for one in shown if wanted.lower() in one.searched]


def glance(shown: Sequence[ParticipantView], width: int, style: TerminalStyle) -> Line | None:
    """Return a space's totals as in `mew status`; None for few agents."""
    found = totals(total(shown))
    text = found.text if style.unicode else found.text.replace(" · ", " - ")
    return ((words.clip(text, width), "dim"),) if found.agents >= SEVERAL else None


def row(view: ParticipantView, *, width: int, is_tall: bool, style: TerminalStyle) -> list[Line]:
    """Return a participant's row: name, gauge, and share, or the age of an old figure. Tall rows add figure and
    basis.
    """
    level = view.items[0].level if view.items else None
    urgent = "" if level is None else LEVEL_STYLES[level]
    style_word, name_style = urgent or fill_style(view), urgent or ("" if view.entry.connected else "dim")
    mark = "  " if level is None else _MARKS[level]
    name = words.clip(view.name, _NAME_CELLS - 1)
    name += " " * (_NAME_CELLS - words.cells(name))
    fill = _fill(view, max(4, width - _NAME_CELLS - 8), style_word, style, shows_age=not is_tall)
    first: Line = ((mark, style_word), (name, name_style), *fill)
    if not is_tall or not view.has_context:
        return [first]
    return [first, ((f"  {words.clip(_about_figure(view, style), width - 2)}", "dim"),)]


def _fill(view: ParticipantView, room: int, style_word: str, style: TerminalStyle, *, shows_age: bool) -> Line:
    """Return the gauge and the share of a row; with `shows_age`, the age of an old figure replaces the gauge."""
    if view.status is None or not view.drawn_share:
        why = view.reason if view.has_context else "" if view.entry.connected else "not connected"
        return ((words.clip(why, room + 5), "dim"),)
    if view.old and shows_age and view.percent is not None:
        return ((words.clip(f"{view.share}, {view.old}", room + 5), "dim"),)
    shade = "dim" if view.percent is None else style_word
    return ((gauge(view.status, room, style, with_limit=True), shade), (view.drawn_share.rjust(5), shade))


def _about_figure(view: ParticipantView, style: TerminalStyle) -> str:
    """Return the second line of a row: the figure, its basis and age, and the participant's state."""
    dot = "·" if style.unicode else "-"
    figure = f"{view.figure} {view.source}" + ("" if view.last_percent is None else f", {view.reason}")
    is_at_work = view.progress is not None
    parts = (view.doing, figure) if is_at_work else (view.old, figure, view.doing)
    return f" {dot} ".join(one for one in parts if one)


_TONE_STYLES: Final[Mapping[Tone, str]] = {"fine": "calm", "notice": "warn", "warning": "warn", "blocking": "alarm"}


def fill_style(view: ParticipantView) -> str:
    """Return the style of a figure by its distance from the limit; one turn before a compaction it is never calm."""
    return _TONE_STYLES.get(view.fill_tone, "dim")


@dataclass(frozen=True, slots=True)
class ParticipantDetails:
    """The selected participant: `figures` of the last hour, and the parts of its `prefix`."""

    entry: BoardEntry
    figures: ParticipantFigures | None = None
    tools: tuple[str, ...] = ()
    prefix: tuple[PrefixPart, ...] = ()
    ended: str | None = None
    proposals: tuple[Envelope, ...] = ()
    """Its open proposals."""
    allowed: tuple[str, ...] = ()
    """Its calls without approval, and how to end the permission."""


def details(about: ParticipantDetails, *, now: datetime, width: int, style: TerminalStyle) -> list[Line]:
    """Return the participant in full, section by section."""
    view = ParticipantView(about.entry, now, about.ended)
    status = view.status
    lines = [*_heading(view, width, style), *(((words.clip(one, width), ""),) for one in view.remarks)]
    for proposal in about.proposals:
        title, *more = whole([f"Proposes {call_text(proposal)}"], width)
        lines += _section(title, [*more, *whole(argument_lines(proposal.body), width)])
    lines += _listed("Always allowed", whole(about.allowed, width))
    if status is not None and status.context is not None:
        lines += _facts(view, width)
        lines += _listed("Composition", composition_lines(status, about.prefix, width=width))
    if about.figures is not None and about.figures.samples:
        lines += _over_time(about.figures, now, width, style)
    return lines + _listed("Tools", (words.clip(clean(name), width) for name in about.tools))


def _heading(view: ParticipantView, width: int, style: TerminalStyle) -> Iterator[Line]:
    """Yield the participant's name, figure and gauge."""
    yield ((words.clip(view.name, width), "bold"),)
    if view.status is None or not view.has_context:
        yield ((words.NO_CONTEXT, "dim"),)
        return
    severity = fill_style(view)
    yield ((f"{view.figure} tokens", severity),)
    yield ((view.known, "dim"),)
    if share := view.drawn_share:
        room = max(4, len(share))
        drawn = gauge(view.status, max(4, width - 1 - room), style, with_limit=True)
        yield ((f"{drawn} {share:>{room}}", severity),)


def _facts(view: ParticipantView, width: int) -> Iterator[Line]:
    for name, value in view.facts:
        first, *more = _wrapped(value, max(4, width - _FACT_CELLS))
        yield ((f"{name:<{_FACT_CELLS}}", "dim"), (first, ""))
        yield from (((" " * _FACT_CELLS + line, ""),) for line in more)


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text between words. Cut words that are longer than a line."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines[-1] else words.clip(word, width)
        if words.cells(longer) > width:
            lines.append(words.clip(word, width))
        else:
            lines[-1] = longer
    return lines


def whole(texts: Sequence[str], width: int) -> Iterator[str]:
    """Wrap texts without cutting anything, because a person must not approve hidden parts."""
    return (text[at : at + width] for text in texts for at in range(0, max(1, len(text)), width))


def _over_time(figures: ParticipantFigures, now: datetime, width: int, style: TerminalStyle) -> list[Line]:
    lines = _section("Last hour", [])
    lines.append(((sparkline(figures, now=now, width=width, style=style), "calm"),))
    lines.append((("60 min ago".ljust(width - 3) + "now", "dim"),))
    for done in reversed(figures.compactions[-5:]):
        lines += [((line, ""),) for line in _wrapped(f"{words.clock(done.at, now)} {changes.line(done)}", width)]
    return lines


def sparkline(figures: ParticipantFigures, *, now: datetime, width: int, style: TerminalStyle) -> str:
    """Return the share of the window over the last hour, one cell per moment, with marks at compactions."""
    blocks, mark = _BLOCKS[style.unicode]
    step = timedelta(hours=1) / width
    begin = now - timedelta(hours=1)
    samples = [(at, one) for one in figures.samples if (at := parse_time(one.at)) is not None]
    compactions = [at for one in figures.compactions if (at := parse_time(one.at)) is not None]
    cells, place, block = [], 0, " "
    for cell in range(width):
        end = begin + (cell + 1) * step
        while place < len(samples) and samples[place][0] <= end:
            block = _block(samples[place][1], blocks)
            place += 1
        cells.append(mark if any(end - step < at <= end for at in compactions) else block)
    return "".join(cells)


def _block(sample: FigureSample, blocks: str) -> str:
    """Return the block for the share of a window; a blank if the share is unknown."""
    if sample.tokens is None or not sample.max_tokens:
        return " "
    return blocks[min(len(blocks) - 1, len(blocks) * sample.tokens // sample.max_tokens)]


def _section(title: str, texts: Sequence[str] | Iterator[str]) -> list[Line]:
    return [(("", ""),), ((title, "bold"),), *(((text, ""),) for text in texts)]


def _listed(title: str, texts: Iterable[str]) -> list[Line]:
    """Return a section, or nothing if the list is empty."""
    listed = [*texts]
    return _section(title, listed) if listed else []
