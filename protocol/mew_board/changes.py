"""[pure] A change of a context in words, such as a compaction or an undo, for every surface.

Accepts an agent's own list, the last change in its report, or the gateway's records of changes and reports.
"""

from mew_protocol.context_report import LastCompaction
from mew_protocol.payloads.context_history import FigureSample, RecordedCompaction
from mew_protocol.payloads.retrieval import CompactionEntry

from mew_board import words
from mew_board.figures import figure
from mew_board.quoting import clean

Change = LastCompaction | RecordedCompaction
"""A `CompactionEntry` is a `LastCompaction`."""


def sizes(change: Change) -> str:
    """Format the tokens before and after a change: `115,940 -> ~52,310`; empty if both are unknown."""
    if change.tokens_before is None and change.tokens_after is None:
        return ""
    is_estimate = words.basis_after(change.basis) == "projected"
    after = figure(change.tokens_after, is_estimate=is_estimate)
    return f"{figure(change.tokens_before)} -> {after}"


def gain(change: Change) -> str:
    """Format the tokens freed by a change or restored by an undo, with their basis; empty if unknown."""
    if change.freed_tokens is None:
        return ""
    verb = "freed" if change.freed_tokens >= 0 else "restored"
    known = f" ({words.words(change.basis)})" if change.basis else ""
    return f"{verb} {figure(abs(change.freed_tokens), is_estimate=change.basis == 'projected')}{known}"


def trigger(change: Change) -> str:
    """Format the cause of a change: `threshold`, `undo of 3`."""
    undoes = change.undoes if isinstance(change, CompactionEntry) else None
    return words.words(change.trigger) + ("" if undoes is None else f" of {undoes}")


def cost(change: Change) -> str:
    """Format the cost of a change in tokens and money; empty if it is unknown."""
    if isinstance(change, LastCompaction):
        return str(change.cost or "")
    spent = "" if change.spent_tokens is None else f"{change.spent_tokens:,} tokens"
    money = "" if change.amount is None else f"{change.amount:.4g} {change.currency or ''}".rstrip()
    return ", ".join(one for one in (spent, money) if one)


def line(change: Change) -> str:
    """Format a change in one line: `requested by ada, 115,940 -> ~52,310, freed ~63,630 (projected)`."""
    asked_by = change.asked_by if isinstance(change, RecordedCompaction | CompactionEntry) else None
    cause = trigger(change) + (f" by {asked_by}" if asked_by else "")
    return clean(", ".join(one for one in (cause, sizes(change), gain(change)) if one))


def recorded_line(change: RecordedCompaction) -> str:
    """Format a change recorded by the gateway, with its cost: `compaction, threshold, freed ~63,630 (projected)`."""
    spent = cost(change)
    return clean(f"compaction, {line(change)}{f', cost {spent}' if spent else ''}")


def sample_line(sample: FigureSample) -> str:
    """Format a report recorded by the gateway. An unknown figure is `?`, never 0."""
    size = words.reading(sample.tokens, sample.max_tokens, sample.basis)
    return clean(f"{size}, level {sample.level or 'unknown'}")


def facts(change: Change) -> list[tuple[str, str]]:
    """Return the known fields of a change as pairs of name and value."""
    recorded_by = change.asked_by if isinstance(change, RecordedCompaction) else None
    own = _entry_facts(change) if isinstance(change, CompactionEntry) else [("asked by", recorded_by)]
    reported = _reported_facts(change) if isinstance(change, LastCompaction) else []
    rows = [*own, *reported, ("cost", cost(change))]
    return [(name, clean(value)) for name, value in rows if value]


def _entry_facts(entry: CompactionEntry) -> list[tuple[str, str | None]]:
    return [
        ("asked by", entry.asked_by or "the agent itself"),
        ("undone by", None if entry.undone_by is None else f"entry {entry.undone_by}"),
        ("problem", entry.problem),
    ]


def _reported_facts(change: LastCompaction) -> list[tuple[str, str | None]]:
    return [
        ("reason", change.reason),
        ("approval", change.approval),
        ("messages", None if change.freed_messages is None else f"{change.freed_messages:,}"),
        ("summary", summary(change)),
    ]


def summary(change: LastCompaction) -> str:
    """Format the size of a change's new summary; empty without one."""
    writer = " (extract)" if change.summary_by == "extract" else ""
    return f"~{change.summary_tokens:,} tokens{writer}" if change.summary_tokens else ""
