"""[pure] The figures of a participant over time, as lines of text and as CSV.

Owns the wording and the columns. A figure that was not known is a gap, never 0.
"""

import csv
import io
from typing import Final

from mew_board.words import clean, figure, freed, words
from mew_protocol.payloads.figures import FigureSample, ParticipantFigures, RecordedCompaction

CSV_COLUMNS: Final = (
    *("at", "participant", "event", "tokens", "max_tokens", "basis", "level", "severity", "trigger", "tokens_before"),
    *("tokens_after", "freed_tokens", "spent_tokens", "amount", "currency", "asked_by"),
)


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


def _cell(value: object) -> str:
    """A value as a cell. A text that a spreadsheet would take for a formula gets an apostrophe."""
    text = "" if value is None else clean(str(value))
    return f"'{text}" if isinstance(value, str) and text.startswith(("=", "+", "-", "@")) else text
