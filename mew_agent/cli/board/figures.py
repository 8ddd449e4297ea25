"""[pure] The figures of a participant over time: as lines of text, as CSV, and as a chart in SVG.

Owns the wording, the columns and the drawing. A figure that was not known is a gap, never 0. Time zones come in as
arguments.
"""

import csv
import io
from datetime import UTC, datetime, tzinfo
from html import escape
from typing import Final

from mew_protocol.envelope import unix_seconds
from mew_protocol.payloads.figures import FigureSample, ParticipantFigures, RecordedCompaction

from mew_agent.cli.board.words import COUNTED, clean, figure, freed, words

CSV_COLUMNS: Final = (
    *("at", "participant", "event", "tokens", "max_tokens", "basis", "level", "severity", "trigger", "tokens_before"),
    *("tokens_after", "freed_tokens", "spent_tokens", "amount", "currency", "asked_by"),
)

_WIDTH: Final = 960
_HEIGHT: Final = 320
_LEFT: Final = 80
_TOP: Final = 40
_RIGHT: Final = 40
_BOTTOM: Final = 40
_STYLE: Final = """
svg { font: 12px system-ui, sans-serif; color-scheme: light dark; background: #fff; }
text { fill: #333; } .axis { stroke: #999; } .grid { stroke: #ddd; } .window { stroke: #b00; stroke-dasharray: 6 4; }
.sure, .unsure { stroke: #06c; stroke-width: 2; fill: none; } .unsure { stroke-dasharray: 2 3; }
.compaction { stroke: #080; stroke-dasharray: 1 3; }
@media (prefers-color-scheme: dark) {
svg { background: #161a1d; } text { fill: #ddd; } .grid { stroke: #333; } .axis { stroke: #777; }
.sure, .unsure { stroke: #6bf; } .window { stroke: #f77; } .compaction { stroke: #6d6; }
}
"""


def sample_line(sample: FigureSample) -> str:
    """A report as a line of text."""
    window = f" of {sample.max_tokens:,}" if sample.max_tokens is not None else ""
    return clean(f"{figure(sample.tokens)}{window} tokens, {words(sample.basis)}, level {sample.level or 'unknown'}")


def compaction_line(done: RecordedCompaction) -> str:
    """A compaction as a line of text."""
    sizes = f"{figure(done.tokens_before)} -> {figure(done.tokens_after)} tokens, {freed(done.freed_tokens)}"
    asked = f" by {done.asked_by}" if done.asked_by else ""
    spent = f", {done.spent_tokens:,} spent" if done.spent_tokens is not None else ""
    price = f" ({done.amount:.4g} {done.currency or ''}".rstrip() + ")" if done.amount is not None else ""
    known = f" ({words(done.basis)})" if done.basis else ""
    return clean(f"compaction, {done.trigger}{asked}: {sizes}{known}{spent}{price}")


def csv_lines(figures: ParticipantFigures) -> list[str]:
    """The figures as lines of CSV by RFC 4180: reports and compactions in the order of time."""
    rows = [{**one.model_dump(), "event": "report"} for one in figures.samples]
    rows += [{**one.model_dump(), "event": "compaction"} for one in figures.compactions]
    written = io.StringIO()
    writer = csv.DictWriter(written, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in sorted(rows, key=lambda row: str(row["at"])):
        writer.writerow({name: _cell(value) for name, value in {**row, "participant": figures.id}.items()})
    return written.getvalue().splitlines()  # no cell has a line break


def chart_svg(figures: ParticipantFigures, zone: tzinfo | None) -> str:
    """The size of a context over time as an SVG image, with times of this zone.

    A report is valid until the next one. A figure that is neither reported nor counted is dotted; an unknown one is a
    gap. Dashes mark the window, dotted lines the compactions.
    """
    samples = [(moment, one) for one in figures.samples if (moment := unix_seconds(one.at)) is not None]
    compactions = [(moment, one) for one in figures.compactions if (moment := unix_seconds(one.at)) is not None]
    moments = [moment for moment, _ in (*samples, *compactions)]
    start, end = (min(moments), max(moments)) if moments else (0.0, 1.0)
    end = max(end, start + 1.0)
    known = [one.tokens or 0 for _, one in samples] + [one.max_tokens or 0 for _, one in samples]
    top = max([*known, 1])

    def x(moment: float) -> float:
        return round(_LEFT + (moment - start) / (end - start) * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(tokens: float) -> float:
        return round(_HEIGHT - _BOTTOM - tokens / top * (_HEIGHT - _TOP - _BOTTOM), 1)

    title = escape(clean(f"{figures.id}: tokens in the context window"))
    parts = [f'<title>{title}</title><text x="{_LEFT}" y="22">{title}</text>']
    for step in range(5):
        tokens = top * step / 4
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tokens)}" y2="{y(tokens)}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tokens) + 4}" text-anchor="end">{round(tokens):,}</text>')
    for step in range(5):
        moment = start + (end - start) * step / 4
        at = datetime.fromtimestamp(moment, zone or UTC).strftime("%H:%M:%S" if end - start < 86_400 else "%m-%d %H:%M")
        parts.append(f'<text x="{x(moment)}" y="{_HEIGHT - 16}" text-anchor="middle">{at}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(0)}" y2="{y(0)}"/>')
    for (moment, one), following in zip(samples, [*samples, None][1:], strict=True):
        until, after = (end, None) if following is None else (following[0], following[1].tokens)
        if one.max_tokens is not None:
            level = y(one.max_tokens)
            parts.append(f'<line class="window" x1="{x(moment)}" x2="{x(until)}" y1="{level}" y2="{level}"/>')
        if one.tokens is not None:
            rise = f" V{y(after)}" if after is not None else ""
            style = "sure" if one.basis in COUNTED else "unsure"
            parts.append(f'<path class="{style}" d="M{x(moment)} {y(one.tokens)} H{x(until)}{rise}"/>')
    for moment, done in compactions:
        place = f'x1="{x(moment)}" x2="{x(moment)}" y1="{_TOP}" y2="{y(0)}"'
        parts.append(f'<line class="compaction" {place}><title>{escape(compaction_line(done))}</title></line>')
    body = "\n".join(parts)
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return f"{head}\n<style>{_STYLE}</style>\n{body}\n</svg>\n"


def _cell(value: object) -> str:
    """A value as a cell. A text that a spreadsheet would take for a formula gets an apostrophe."""
    text = "" if value is None else clean(str(value))
    return f"'{text}" if isinstance(value, str) and text.startswith(("=", "+", "-", "@")) else text
