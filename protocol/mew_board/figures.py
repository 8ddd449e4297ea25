"""[pure] Figures of a context in words: sizes with their basis, freed tokens, ages.

An unknown figure is `?`. A `~` marks figures that are neither reported nor counted exactly.
"""

from collections.abc import Mapping
from typing import Any

from mew_protocol.context_report import COUNTED, ContextReport, Outdated
from mew_protocol.payloads.participant import basis_label

from mew_board.shared_words import OUTDATED_WORDS, REASONS


def basis_words(label: str) -> str:
    """Return a basis for people, the same on every surface: `server counted`."""
    return label.replace("_", " ")


def figure(number: int | None, *, is_estimate: bool = False) -> str:
    """Format a figure: `1,234`, with `~` if it is an estimate; `?` if it is unknown."""
    return "?" if number is None else f"{'~' if is_estimate else ''}{number:,}"


def known_figure(number: int | None, known_by: str | None) -> str:
    """Format a figure, with `~` unless it was reported or counted."""
    return figure(number, is_estimate=known_by not in COUNTED)


def window_size(max_tokens: int | None, report: ContextReport | None) -> str:
    """Format the size of a window, with `~` if it is assumed."""
    return figure(max_tokens, is_estimate=report is None or report.max_tokens_basis == "assumed")


def freed_words(tokens: int | None, basis: str | None) -> str:
    """Format the net tokens freed by a compaction: `freed ~63,630 tokens`, `freed ? tokens`."""
    return f"freed {figure(tokens, is_estimate=basis == 'projected')} tokens"


def size_after(tokens: int, window: str, known_by: str) -> str:
    """Format the size of a context after a change: `~34,782 of 128,000 (projected; exact after its next call)`."""
    how = basis_words(known_by) + ("; exact after its next call" if known_by == "projected" else "")
    return f"{known_figure(tokens, known_by)} of {window} ({how})"


def context_size(tokens: int | None, max_tokens: int | None, report: ContextReport | None) -> str:
    """Format the size of a context, its window and its basis: `98,412 of 128,000 tokens (reported)`."""
    known_by = basis_label(tokens, report)
    return f"{known_figure(tokens, known_by)} of {window_size(max_tokens, report)} tokens ({basis_words(known_by)})"


def why_unknown(report: ContextReport | None) -> str:
    """Return why a report has no size: `no usage reported`."""
    if report is None:
        return "nothing reported"
    return REASONS[report.reason] if report.reason else "window unknown"


def compaction_sizes(arguments: Mapping[str, Any]) -> str:
    """Format the known sizes of a proposed compaction, after a noun: ` of ~90,000 tokens, which frees ~40,000`."""
    present, freed = arguments.get("present_tokens"), arguments.get("freed_tokens")
    size = f" of ~{present:,} tokens" if isinstance(present, int) else ""
    unit = "" if size else " tokens"
    return size + (f", which frees ~{freed:,}{unit}" if isinstance(freed, int) else "")


def span(seconds: float) -> str:
    """Return a duration in its largest unit: `12 min`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def old_figure(outdated: Outdated, age: str | None) -> str:
    """Describe an old figure: `figure 12 min old, messages since`. `age` is without "ago"."""
    return f"figure {age or 'of unknown age'}{' old' if age else ''}, {OUTDATED_WORDS[outdated]}"
