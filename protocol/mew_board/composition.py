"""[pure] The parts of a context window, with free and reserved tokens, from the figures of the report."""

from mew_protocol.context_report import COUNTED
from mew_protocol.payloads.participant import PrefixPart, Status, report_of

from mew_board import words
from mew_board.board_json import ShownPart
from mew_board.figures import figure
from mew_board.quoting import clean
from mew_board.shared_words import PART_NAMES


def part_of(part: str, tokens: int, basis: str, whole: int | None, *, name: str | None = None) -> ShownPart:
    """Return a part of a window: its tokens with `~` if they are an estimate, and its share of the whole."""
    return ShownPart(
        part=part,
        name=PART_NAMES.get(part, words.words(part)) if name is None else name,
        tokens=tokens,
        amount=figure(tokens, is_estimate=basis not in {*COUNTED, "tokenizer"}),
        share=f"{100 * tokens / whole:.1f}%" if whole else "",
        basis=words.words(basis),
    )


def composition(status: Status) -> list[ShownPart]:
    """Return the parts of a window, then the free tokens below and above the compaction limit.

    Unknown parts are absent.
    """
    report, basis, window = report_of(status), words.basis(status), status.max_tokens
    parts = [part_of(one.part, one.tokens, one.basis, window) for one in report.breakdown or () if one.tokens]
    if status.tokens is None or window is None:
        return parts
    unsent = sum(one.tokens for one in parts if one.part == "unsent")
    used = status.tokens + unsent
    unnamed = used - sum(one.tokens for one in parts)
    mark = window if report.compact_at_tokens is None else min(report.compact_at_tokens, window)
    known = "exact" if basis in COUNTED and not unsent else "projected"
    rest = [
        ("other" if parts else "used", unnamed, basis),
        ("free", mark - used, known),
        ("reserve", window - max(mark, used), known),
    ]
    return parts + [part_of(part, tokens, how, window) for part, tokens, how in rest if tokens > 0]


def prefix_part(part: PrefixPart, whole: int | None) -> ShownPart:
    """Return a part of the prefix, with its share of the whole window."""
    return part_of("prefix", part.tokens, part.basis, whole, name=prefix_name(part))


def prefix_name(part: PrefixPart) -> str:
    """Return the name of a part of the prefix."""
    if part.part == "tool":
        return clean(part.name or "tool")
    return words.count_of(part.count or 0, "smaller tool") if part.part == "other_tools" else words.words(part.part)
