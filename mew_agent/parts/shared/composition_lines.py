"""[pure] Lines for the terminal with the parts of a context window, from `mew_board.composition`."""

from collections.abc import Iterator, Sequence

from mew_board import words
from mew_board.board_json import ShownPart
from mew_board.composition import composition, part_of, prefix_part
from mew_protocol.payloads.participant import PrefixPart, Status


def composition_lines(status: Status, prefix: Sequence[PrefixPart], *, width: int) -> Iterator[str]:
    """Yield the parts as a table, with the parts of the prefix below it: name, tokens, share of the window, basis.

    If `width` is too small, omits the basis and cuts names.
    """
    rows = [(one.name, one.amount, one.share, one.basis) for one in _with_prefix(status, prefix)]
    widths = [max((words.cells(row[column]) for row in rows), default=0) for column in range(4)]
    has_basis = sum(widths) + 6 <= width
    if not has_basis:
        widths[0] = max(4, min(widths[0], width - widths[1] - widths[2] - 4))
    for name, tokens, share, basis in rows:
        shown = words.clip(name, widths[0])
        padded = shown + " " * (widths[0] - words.cells(shown))
        yield f"{padded}  {tokens:>{widths[1]}}  {share:>{widths[2]}}{f'  {basis}' if has_basis else ''}"


def _with_prefix(status: Status, prefix: Sequence[PrefixPart]) -> Iterator[ShownPart]:
    """Yield each part, and the parts of the prefix below the prefix."""
    parts, window = composition(status), status.max_tokens
    if prefix and not any(one.part == "prefix" for one in parts):  # no call yet
        parts.insert(0, part_of("prefix", sum(one.tokens for one in prefix), "projected", window))
    for one in parts:
        yield one
        if one.part == "prefix":
            inner = (prefix_part(part, window) for part in prefix)
            yield from (part.model_copy(update={"name": f"  {part.name}"}) for part in inner)
