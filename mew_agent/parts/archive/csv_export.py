"""[pure] The figures of a participant over time as CSV. An unknown figure is an empty cell, never 0."""

import csv
import io
from typing import Final

from mew_board.quoting import clean
from mew_protocol.payloads.context_history import ParticipantFigures

CSV_COLUMNS: Final = (
    *("at", "participant", "event", "tokens", "max_tokens", "basis", "level", "severity", "trigger", "tokens_before"),
    *("tokens_after", "freed_tokens", "spent_tokens", "amount", "currency", "asked_by"),
)


def csv_lines(figures: ParticipantFigures) -> list[str]:
    """Return the figures as lines of CSV by RFC 4180: reports and compactions in the order of time."""
    rows = [{**one.model_dump(), "event": "report"} for one in figures.samples]
    rows += [{**one.model_dump(), "event": "compaction"} for one in figures.compactions]
    written = io.StringIO()
    writer = csv.DictWriter(written, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in sorted(rows, key=lambda row: str(row["at"])):
        writer.writerow({name: _cell(value) for name, value in {**row, "participant": figures.id}.items()})
    return written.getvalue().splitlines()  # no cell has a line break


def _cell(value: object) -> str:
    """Return a value as a cell. Text that a spreadsheet would read as a formula gets an apostrophe."""
    text = "" if value is None else clean(str(value))
    return f"'{text}" if isinstance(value, str) and text.startswith(("=", "+", "-", "@")) else text
