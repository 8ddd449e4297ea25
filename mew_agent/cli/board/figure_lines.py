"""[pure] The figures of a participant over time, as lines of text. A figure that was not known is `?`, never 0."""

from mew_board import changes
from mew_board.words import clean, reading
from mew_protocol.payloads.context_history import FigureSample, RecordedCompaction


def sample_line(sample: FigureSample) -> str:
    """Return a report as a line of text."""
    return clean(f"{reading(sample.tokens, sample.max_tokens, sample.basis)}, level {sample.level or 'unknown'}")


def compaction_line(done: RecordedCompaction) -> str:
    """Return a compaction as a line of text."""
    cost = changes.cost(done)
    return clean(f"compaction, {changes.line(done)}{f', cost {cost}' if cost else ''}")
