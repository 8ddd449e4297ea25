"""[pure] The figures of a participant over time, as lines of text. A figure that was not known is `?`, never 0."""

from mew_board.words import clean, figure, freed, words
from mew_protocol.payloads.figures import FigureSample, RecordedCompaction


def sample_line(sample: FigureSample) -> str:
    """Return a report as a line of text."""
    window = f" of {sample.max_tokens:,}" if sample.max_tokens is not None else ""
    return clean(f"{figure(sample.tokens)}{window} tokens, {words(sample.basis)}, level {sample.level or 'unknown'}")


def compaction_line(done: RecordedCompaction) -> str:
    """Return a compaction as a line of text."""
    sizes = f"{figure(done.tokens_before)} -> {figure(done.tokens_after)} tokens, {freed(done.freed_tokens)}"
    asked = f" by {done.asked_by}" if done.asked_by else ""
    spent = f", {done.spent_tokens:,} spent" if done.spent_tokens is not None else ""
    price = f" ({done.amount:.4g} {done.currency or ''}".rstrip() + ")" if done.amount is not None else ""
    known = f" ({words(done.basis)})" if done.basis else ""
    return clean(f"compaction, {done.trigger}{asked}: {sizes}{known}{spent}{price}")
