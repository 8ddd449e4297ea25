"""[pure] What the panels of the terminal application show, as lines of styled text that fit a width.

Owns layout only; the wording is `board.words`. Styles are words that the application's theme knows. Width and time come
as arguments.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mew_protocol.attention import AttentionItem, AttentionLevel
from mew_protocol.context_report import ContextReport
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.figures import ParticipantFigures
from mew_protocol.payloads.participant import Board, BoardEntry, PrefixPart, Status
from mew_protocol.proposal_text import argument_lines, call_text

from mew_agent.cli.board import words
from mew_agent.cli.board.composition import composition_lines
from mew_agent.cli.board.needs import severities
from mew_agent.cli.board.table import TerminalStyle, gauge

Segment = tuple[str, str]
"""A text and its style: `""`, `dim`, `bold`, or one of `STYLES`."""
Line = tuple[Segment, ...]

STYLES: Final[Mapping[int | None, str]] = {0: "calm", 1: "warn", 2: "warn", 3: "alarm", None: "dim"}
LEVEL_STYLES: Final[Mapping[AttentionLevel, str]] = {"blocking": "alarm", "warning": "warn", "notice": ""}

_MARKS: Final[Mapping[AttentionLevel, str]] = {"blocking": "! ", "warning": "- ", "notice": "  "}

COMPACT_ABOVE: Final = 12
"""With more participants, each takes one line."""

_NAME_CELLS: Final = 14
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS: Final = "_.-=+*#@"


def attention_line(item: AttentionItem, now: datetime, width: int) -> Line:
    """One item of what needs a person, with its age: `! coder waits for approval of write_file, 12 s`."""
    age = words.ago(item.since, now)
    tail = f", {age.removesuffix(' ago')}" if age else ""
    reason = words.clip(words.clean(item.reason), max(8, width - 2 - len(tail)))
    return ((_MARKS[item.level] + reason, LEVEL_STYLES[item.level]), (tail, "dim"))


def sorted_entries(board: Board, attention: Sequence[AttentionItem], wanted: str = "") -> list[BoardEntry]:
    """The participants to list: those that need a person first, then the fullest, those without a context last.

    `wanted` is a part of a name or of a status; empty means all.
    """
    trouble = severities(attention)

    def key(entry: BoardEntry) -> tuple[int, bool, float, str]:
        share = words.percent(entry.status)
        worst = trouble.get(entry.id, 0)
        no_context = not words.has_context(entry.status)
        # A notice does not move a row: it is about what happens by itself.
        return -worst if worst > 1 else 0, no_context, -(share if share is not None else -1), entry.id

    search = wanted.casefold()
    shown = [one for one in board.participants if search in f"{one.id} {one.status and one.status.status}".casefold()]
    return sorted(shown, key=key)


def row(
    entry: BoardEntry, level: AttentionLevel | None, *, now: datetime, width: int, is_tall: bool, style: TerminalStyle
) -> list[Line]:
    """A participant: name, gauge and share, or the age of an old figure; tall rows have figure and basis below."""
    status, room = entry.status, max(4, width - _NAME_CELLS - 8)
    old = words.old_figure(entry, now)
    urgent = "" if level is None else LEVEL_STYLES[level]
    style_word, name_style = urgent or fill_style(status), urgent or ("" if entry.connected else "dim")
    mark = "  " if level is None else _MARKS[level]
    name = words.clip(words.clean(entry.id), _NAME_CELLS - 1).ljust(_NAME_CELLS)
    share = words.percent(status)
    if status is None or share is None:
        why = words.reason(status, now) if words.has_context(status) else "" if entry.connected else "not connected"
        first: Line = ((mark, style_word), (name, name_style), (words.clip(why, room + 5), "dim"))
    elif old and not is_tall:
        first = ((mark, style_word), (name, name_style), (words.clip(f"{share}%, {old}", room + 5), "dim"))
    else:
        known = "" if words.basis(status) in words.COUNTED else "~"
        drawn = gauge(status, room, style, with_limit=True)
        first = ((mark, style_word), (name, name_style), (drawn, style_word), (f"{known}{share}%".rjust(5), style_word))
    if not is_tall or not words.has_context(status):
        return [first]
    doing = words.state(status.status or "") if status is not None else ""
    is_quiet = words.is_quiet(status)
    figure = f"{words.tokens(status)} of {words.window(status)} {words.source(status)}"
    dot = "·" if style.unicode else "-"
    work = status.context.progress if status is not None and status.context is not None else None
    if work is not None:
        second = f"{doing}, {words.progress(work)} {dot} {figure}"
    else:
        second = f" {dot} ".join(one for one in (old, figure, "" if is_quiet else doing) if one)
    return [first, ((f"  {words.clip(second, width - 2)}", "dim"),)]


def fill_style(status: Status | None) -> str:
    """The style of a figure: by its severity, and never calm one turn before a compaction."""
    report = status.context if status is not None else None
    turns = report.turns_to_compaction if report is not None else None
    style = STYLES[words.severity(status)]
    return "warn" if style == "calm" and turns is not None and turns <= 1 else style


@dataclass(frozen=True, slots=True)
class ParticipantDetails:
    """What is known of the participant that is selected: `figures` of the last hour, and the parts of its `prefix`."""

    entry: BoardEntry
    figures: ParticipantFigures | None = None
    tools: tuple[str, ...] = ()
    prefix: tuple[PrefixPart, ...] = ()
    ended: str | None = None
    proposals: tuple[Envelope, ...] = ()
    """Its open proposals."""
    allowed: tuple[str, ...] = ()
    """What it may call without asking, and how to end that."""


def details(about: ParticipantDetails, *, now: datetime, width: int, style: TerminalStyle) -> list[Line]:
    """The participant in full, section by section."""
    entry, status = about.entry, about.entry.status
    lines: list[Line] = [((words.clip(words.clean(entry.id), width), "bold"),)]
    if status is None or not words.has_context(status):
        lines.append(((words.NO_CONTEXT, "dim"),))
    else:
        severity = fill_style(status)
        lines.append(((f"{words.tokens(status)} of {words.window(status)} tokens", severity),))
        share = words.percent(status)
        known = words.source(status) if share is not None else f"{words.source(status)}: {words.reason(status, now)}"
        lines.append(((known, "dim"),))
        if share is not None:
            lines.append(((f"{gauge(status, max(4, width - 5), style, with_limit=True)} {share:>3}%", severity),))
    lines += [((words.clip(one, width), ""),) for one in words.remarks(entry, now=now, ended=about.ended)]
    for proposal in about.proposals:
        title, *more = whole([f"Proposes {call_text(proposal)}"], width)
        lines += _section(title, [*more, *whole(argument_lines(proposal.body), width)])
    if about.allowed:
        lines += _section("Always allowed", whole(about.allowed, width))
    if status is not None and status.context is not None:
        lines += _facts(status.context, entry, now, width)
        if parts := [*composition_lines(status, about.prefix, width=width)]:
            lines += _section("Composition", parts)
    if about.figures is not None and about.figures.samples:
        lines += _over_time(about.figures, now, width, style)
    if about.tools:
        lines += _section("Tools", (words.clip(words.clean(name), width) for name in about.tools))
    return lines


def _facts(report: ContextReport, entry: BoardEntry, now: datetime, width: int) -> Iterator[Line]:
    cut = report.last_compaction
    rows = [
        ("next call", words.next_call(report)),
        ("compacts in", words.compacts_in(entry)),
        ("compacts at", "-" if report.compact_at_tokens is None else f"{report.compact_at_tokens:,}"),
        ("last compaction", words.last_compaction(report, now)),
        ("reason", words.clean(cut.reason or "-") if cut else "-"),
        ("cost", str(cut.cost) if cut and cut.cost else "-"),
        ("spent", words.clean(str(report.spending or "-"))),
        *(("spent for", words.spent_for(one)) for one in report.spent_for or ()),
        ("model", words.clean(report.model or "-")),
        ("policy", words.words(report.policy or "-")),
        ("reported", words.ago(report.measured_at, now) or "-"),
    ]
    for name, value in rows:
        if value not in ("-", ""):
            yield ((f"{name:<16}", "dim"), (words.clip(value, max(4, width - 16)), ""))


def whole(texts: Sequence[str], width: int) -> Iterator[str]:
    """Texts in lines that fit; nothing is cut off, because a person must not approve what is not shown."""
    return (text[at : at + width] for text in texts for at in range(0, max(1, len(text)), width))


def _over_time(figures: ParticipantFigures, now: datetime, width: int, style: TerminalStyle) -> list[Line]:
    lines = _section("Last hour", [])
    lines.append(((sparkline(figures, now=now, width=width, style=style), "calm"),))
    lines.append((("60 min ago".ljust(width - 3) + "now", "dim"),))
    for done in reversed(figures.compactions[-5:]):
        asked = f" by {words.clean(done.asked_by)}" if done.asked_by else ""
        what = f"{words.words(done.trigger)}{asked}, {words.freed(done.freed_tokens)}"
        lines.append(((words.clip(f"{words.clock(done.at, now)} {what}", width), ""),))
    return lines


def sparkline(figures: ParticipantFigures, *, now: datetime, width: int, style: TerminalStyle) -> str:
    """The share of the window over the last hour, one cell per moment, with a mark where it was compacted."""
    blocks, mark, blank = (_BLOCKS, "╎", " ") if style.unicode else (_ASCII_BLOCKS, "!", " ")
    step = timedelta(hours=1) / width
    begin = now - timedelta(hours=1)
    samples = [(at, one) for one in figures.samples if (at := words.parse_time(one.at)) is not None]
    compactions = [at for one in figures.compactions if (at := words.parse_time(one.at)) is not None]
    cells, place, newest = [], 0, None
    for cell in range(width):
        end = begin + (cell + 1) * step
        while place < len(samples) and samples[place][0] <= end:
            newest = samples[place][1]
            place += 1
        if any(end - step < at <= end for at in compactions):
            cells.append(mark)
        elif newest is None or newest.tokens is None or not newest.max_tokens:
            cells.append(blank)
        else:
            cells.append(blocks[min(len(blocks) - 1, len(blocks) * newest.tokens // newest.max_tokens)])
    return "".join(cells)


def _section(title: str, texts: Sequence[str] | Iterator[str]) -> list[Line]:
    return [(("", ""),), ((title, "bold"),), *(((text, ""),) for text in texts)]
