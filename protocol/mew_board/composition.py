"""[pure] The parts of a context window, what is free and what is kept free. The figures are those of the report."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mew_protocol.payloads.participant import PrefixPart, Status
from mew_protocol.shared_words import PART_NAMES

from mew_board import words


class Share(NamedTuple):
    """One part of a window: its tokens and how they are known."""

    part: str
    tokens: int
    basis: str

    @property
    def name(self) -> str:
        """What the part is called."""
        return PART_NAMES.get(self.part, words.words(self.part))

    def share(self, whole: int | None) -> str:
        """Format the part of a whole: `13.1%`; empty if that is unknown."""
        return f"{100 * self.tokens / whole:.1f}%" if whole else ""

    @property
    def amount(self) -> str:
        """The tokens, with `~` if they are an estimate."""
        return words.figure(self.tokens, is_estimate=self.basis not in {*words.COUNTED, "tokenizer"})


def composition(status: Status) -> list[Share]:
    """Return the parts of a window, then the free tokens below and above the compaction limit.

    Unknown parts are absent.
    """
    report, basis = words.report_of(status), words.basis(status)
    parts = [Share(one.part, one.tokens, one.basis) for one in report.breakdown or () if one.tokens]
    if status.tokens is None or status.max_tokens is None:
        return parts
    unsent = sum(one.tokens for one in parts if one.part == "unsent")
    used = status.tokens + unsent
    known = "exact" if basis in words.COUNTED and not unsent else "projected"
    return [*parts, *_unnamed(parts, used, basis), *_left(used, status.max_tokens, report.compact_at_tokens, known)]


def _unnamed(parts: Sequence[Share], used: int, basis: str) -> Iterator[Share]:
    """Yield the tokens in use that are in no part."""
    rest = used - sum(one.tokens for one in parts)
    if rest > 0:
        yield Share("other" if parts else "used", rest, basis)


def _left(used: int, window: int, compact_at: int | None, basis: str) -> Iterator[Share]:
    """Yield the free tokens below and above the compaction limit."""
    mark = window if compact_at is None else min(compact_at, window)
    free, reserve = max(0, mark - used), max(0, window - max(mark, used))
    if free:
        yield Share("free", free, basis)
    if reserve:
        yield Share("reserve", reserve, basis)


def prefix_name(part: PrefixPart) -> str:
    """Return the name of a part of the prefix."""
    if part.part == "tool":
        return words.clean(part.name or "tool")
    return words.count_of(part.count or 0, "smaller tool") if part.part == "other_tools" else words.words(part.part)
