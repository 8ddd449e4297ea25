"""[pure] Figures of a context in words: sizes with how they are known, freed tokens, ages.

An unknown figure is `?`. One that is neither reported nor counted exactly carries a `~`.
"""

from typing import Final

from mew_protocol.context_report import ContextReport, Outdated

from mew_board.shared_words import OUTDATED_WORDS

COUNTED: Final = frozenset({"exact", "reported", "server_counted"})
"""Bases of figures that are shown without `~`."""


def basis_words(label: str) -> str:
    """Return a basis for people, the same on every surface: `server counted`."""
    return label.replace("_", " ")


def figure(number: int | None, *, is_estimate: bool = False) -> str:
    """Format a figure: `1,234`, with `~` if it is an estimate; `?` if it is unknown."""
    return "?" if number is None else f"{'~' if is_estimate else ''}{number:,}"


def known_figure(number: int | None, known_by: str | None) -> str:
    """Format a figure, with `~` unless its basis says that it was reported or counted."""
    return figure(number, is_estimate=known_by not in COUNTED)


def window_size(max_tokens: int | None, report: ContextReport | None) -> str:
    """Format the size of a window, with `~` if it is assumed."""
    return figure(max_tokens, is_estimate=report is None or report.max_tokens_basis == "assumed")


def freed_words(tokens: int | None, basis: str | None) -> str:
    """Format the net tokens that a compaction freed: `freed ~63,630 tokens`, `freed ? tokens`."""
    return f"freed {figure(tokens, is_estimate=basis == 'projected')} tokens"


def size_after(tokens: int, window: str, known_by: str) -> str:
    """Format the size of a context after a change: `~34,782 of 128,000 (projected; exact after its next call)`."""
    how = basis_words(known_by) + ("; exact after its next call" if known_by == "projected" else "")
    return f"{known_figure(tokens, known_by)} of {window} ({how})"


def span(seconds: float) -> str:
    """Return a duration in its largest unit: `12 min`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def old_figure(outdated: Outdated, age: str | None) -> str:
    """Say for people that a figure is old: `figure 12 min old, messages since`. `age` is without "ago"."""
    return f"figure {age or 'of unknown age'}{' old' if age else ''}, {OUTDATED_WORDS[outdated]}"
