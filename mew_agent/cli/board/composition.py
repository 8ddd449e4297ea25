"""[pure] The parts of a context window for the terminal.

Owns what is free and what is kept free, and how parts are written. The figures are those of the report.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mew_protocol.board_words import PART_NAMES
from mew_protocol.payloads.participant import PrefixPart, Status

from mew_agent.cli.board import words


class Share(NamedTuple):
    """One part of a window: its tokens and how they are known."""

    part: str
    tokens: int
    basis: str

    @property
    def amount(self) -> str:
        """The tokens, with `~` if they are an estimate."""
        return words.figure(self.tokens, is_estimate=self.basis not in {*words.COUNTED, "tokenizer"})


def composition(status: Status) -> list[Share]:
    """Return the parts of a window, then the free tokens below and above the compaction limit.

    Unknown parts are absent.
    """
    report, tokens, window = status.context, status.tokens, status.max_tokens
    found = (report.breakdown if report is not None else None) or ()
    parts = [Share(one.part, one.tokens, one.basis) for one in found if one.tokens]
    if tokens is None or window is None:
        return parts
    unsent = sum(one.tokens for one in parts if one.part == "unsent")
    rest = tokens - sum(one.tokens for one in parts if one.part != "unsent")
    basis = words.basis(status)
    if rest > 0:
        parts.append(Share("other" if parts else "used", rest, basis))
    used = tokens + unsent
    mark = min(window if report is None or report.compact_at_tokens is None else report.compact_at_tokens, window)
    known = "exact" if basis in words.COUNTED and not unsent else "projected"
    left = (Share("free", max(0, mark - used), known), Share("reserve", max(0, window - max(mark, used)), known))
    return [*parts, *(one for one in left if one.tokens)]


def prefix_name(part: PrefixPart) -> str:
    """Return the name of a part of the prefix."""
    if part.part == "tool":
        return words.clean(part.name or "tool")
    return words.count_of(part.count or 0, "smaller tool") if part.part == "other_tools" else words.words(part.part)


def composition_lines(status: Status, prefix: Sequence[PrefixPart], *, width: int) -> Iterator[str]:
    """The parts as a table, with the parts of the prefix below it: name, tokens, share of the window, basis.

    If `width` columns are too few, the basis is left out and names are cut.
    """
    window = status.max_tokens
    rows = [
        (name, one.amount, f"{100 * one.tokens / window:.1f}%" if window else "", words.words(one.basis))
        for name, one in _named_parts(composition(status), prefix)
    ]
    widths = [max((words.cells(row[column]) for row in rows), default=0) for column in range(4)]
    has_basis = sum(widths) + 6 <= width
    if not has_basis:
        widths[0] = max(4, min(widths[0], width - widths[1] - widths[2] - 4))
    for name, tokens, share, basis in rows:
        shown = words.clip(name, widths[0])
        padded = shown + " " * (widths[0] - words.cells(shown))
        yield f"{padded}  {tokens:>{widths[1]}}  {share:>{widths[2]}}{f'  {basis}' if has_basis else ''}"


def _named_parts(parts: list[Share], prefix: Sequence[PrefixPart]) -> Iterator[tuple[str, Share]]:
    """Yield each part with its name, and the parts of the prefix below the prefix."""
    if prefix and not any(one.part == "prefix" for one in parts):  # no call yet
        parts.insert(0, Share("prefix", sum(one.tokens for one in prefix), "projected"))
    for one in parts:
        yield PART_NAMES.get(one.part, words.words(one.part)), one
        if one.part == "prefix":
            yield from ((f"  {prefix_name(part)}", Share(part.part, part.tokens, part.basis)) for part in prefix)
