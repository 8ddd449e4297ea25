"""[pure] The parts of a context window as lines for the terminal. The figures are those of `mew_board.composition`."""

from collections.abc import Iterator, Sequence

from mew_board import words
from mew_board.composition import Share, composition, prefix_name
from mew_protocol.payloads.participant import PrefixPart, Status


def composition_lines(status: Status, prefix: Sequence[PrefixPart], *, width: int) -> Iterator[str]:
    """Yield the parts as a table, with the parts of the prefix below it: name, tokens, share of the window, basis.

    If `width` columns are too few, the basis is left out and names are cut.
    """
    window = status.max_tokens
    rows = [
        (name, one.amount, one.share(window), words.words(one.basis))
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
        yield one.name, one
        if one.part == "prefix":
            yield from ((f"  {prefix_name(part)}", Share(part.part, part.tokens, part.basis)) for part in prefix)
