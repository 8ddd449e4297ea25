"""[pure] The texts that every request sends before its items: prefix (system prompt, tools), summary and pins.

Divides a reported total among them and the lumps (items without a measured price), and the prefix among its texts. Does
not know reports; see `ledger`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from mew_protocol.payloads.participant import MAX_PREFIX_PARTS, PrefixPart

from mew_agent.context.intervals import Intervals, apportion, divide, fit
from mew_agent.context.item_sizes import ItemSize
from mew_agent.tokens.projection import Calibration, features

PREFIX_DOUBT, TEXT_DOUBT = 1.0, 0.1
"""Likely errors of projections, as shares: of system prompt and tools, which templates write in ways that clients
cannot see, and of texts."""

EXPLAINED_SHARE = 1 / 4  # of the doubtful texts: a larger difference means that the prefix has changed

LUMP_REVIEWS = 8  # number of intervals after a lump that improve the division of its total


class FixedTexts(NamedTuple):
    """Features of the prefix and of the pins."""

    prefix: float = 0.0
    pins: float = 0.0


class FixedTokens(NamedTuple):
    """Tokens of the prefix and of the pins."""

    prefix: int = 0
    pins: int = 0


NO_GROWTH = FixedTokens()
NO_TEXTS = FixedTexts()


@dataclass
class Preamble:
    """Sizes of prefix, pins and summary in the last reported prompt, and the texts of the next one."""

    tokens: FixedTokens = NO_GROWTH
    summary_tokens: int = 0
    summary: ItemSize | None = None
    texts: FixedTexts = NO_TEXTS  # texts of the next request
    sent: FixedTexts = NO_TEXTS  # texts of the last reported call
    counted_growth: int | None = None  # tokens that a server counted between the two prefixes
    is_held: bool = False  # whether the last report has the prefix of the one before it, so that its price stays sure
    reviews_left: int = 0

    @property
    def total_tokens(self) -> int:
        """Prefix, summary and pins together."""
        return self.tokens.prefix + self.summary_tokens + self.tokens.pins

    def describe(self, texts: FixedTexts) -> None:
        """Set the texts of the next request."""
        self.texts, self.counted_growth = texts, None

    def project(self, calibration: Calibration) -> FixedTokens:
        """Project prefix and pins from their texts alone."""
        return FixedTokens(*[calibration.project(units) if units else 0 for units in self.texts])

    def growth(self, calibration: Calibration) -> FixedTokens:
        """Return the growth of prefix and pins since the last reported call, in tokens."""
        if self.texts is self.sent:
            return NO_GROWTH
        prefix = self.counted_growth
        if prefix is None:
            prefix = round(calibration.tokens(self.texts.prefix - self.sent.prefix))
        pins = round(calibration.tokens(self.texts.pins - self.sent.pins))
        return FixedTokens(max(-self.tokens.prefix, prefix), max(-self.tokens.pins, pins))

    def grow(self, calibration: Calibration) -> None:
        """Treat the texts of the next request as sent, at their projected size."""
        grown = self.growth(calibration)
        self.tokens = FixedTokens(self.tokens.prefix + grown.prefix, self.tokens.pins + grown.pins)

    def set_summary(self, size: ItemSize | None, tokens: int | None, calibration: Calibration) -> None:
        """Set or remove the summary. `tokens` is its size, if known."""
        self.summary = size
        self.summary_tokens = 0 if size is None else tokens or size.project(calibration)

    def set_summary_size(self, tokens: int | None, calibration: Calibration) -> None:
        """Set the summary's size from a server's count, including the template's overhead."""
        if self.summary is not None and tokens is not None:
            self.summary = replace(self.summary, known_tokens=max(0, tokens - calibration.wrap(0)))
            self.summary_tokens = tokens

    def is_summary_counted(self, calibration: Calibration) -> bool:
        """Return whether the summary's tokens are a trusted tokenizer's count."""
        size = self.summary
        if size is None or not size.is_counted(calibration):
            return False
        return size.project(calibration) == self.summary_tokens

    def review(self, intervals: Intervals, calibration: Calibration) -> None:
        """Divide lumps again within their reported total, after the first intervals have trained a model's
        calibration.
        """
        self.reviews_left -= 1
        lumps, projected = intervals.lumps, self.project(calibration)
        prefix = self.tokens.prefix if self.is_held else projected.prefix
        wanted = [
            prefix,
            self.summary.project(calibration) if self.summary else 0,
            projected.pins,
            intervals.lump_items.project(calibration),
        ]
        tokens = self._divide(self.total_tokens + lumps.tokens, wanted, intervals, calibration)
        lumps.tools.tokens = lumps.tools.tokens * tokens // lumps.tokens if lumps.tokens else 0
        lumps.messages.tokens = tokens - lumps.tools.tokens

    def rescale(
        self, intervals: Intervals, reported: int, calibration: Calibration, *, measured_may_stay: bool
    ) -> None:
        """Make all parts sum to a reported prompt by changing the least certain ones.

        Measured intervals keep their size if only their surroundings changed and enough remains for the rest. Exact
        intervals become doubtful if less than half of the rest's expected size remains.
        """
        lumps = intervals.lumps
        left = reported - intervals.exact.tokens - intervals.measured.tokens
        if left * 2 < self.total_tokens + lumps.tokens:
            intervals.doubt_all()
        parts = [self.tokens.prefix, self.summary_tokens, self.tokens.pins]
        if left >= 0 and measured_may_stay:
            share = self._divide(left, [*parts, lumps.tokens], intervals, calibration)
            funds = [*lumps]
            sizes = apportion(share, [fund.tokens for fund in funds])
        else:
            funds = [*lumps, *intervals.measured]
            before = [fund.tokens for fund in funds]
            whole = max(0, reported - intervals.exact.tokens)
            prefix, self.summary_tokens, pins, *sizes = apportion(whole, [*parts, *before])
            self.tokens = FixedTokens(prefix, pins)
        for fund, tokens in zip(funds, sizes, strict=True):
            fund.tokens = tokens
        self.reviews_left = LUMP_REVIEWS

    def _divide(self, whole: int, wanted: list[int], intervals: Intervals, calibration: Calibration) -> int:
        """Divide `whole` among prefix, summary, pins and lumps; doubtful parts take the difference. Returns the lumps'
        part.
        """
        prefix, summary, pins, lumps = wanted
        is_summary_sized = self.summary is not None and self.summary.sized_tokens(calibration) is not None
        unsized = max(0, lumps - intervals.lump_items.sized_tokens)
        texts = [0 if is_summary_sized else summary, pins, unsized]
        is_explained = abs(whole - sum(wanted)) <= EXPLAINED_SHARE * sum(texts)
        prefix_doubt = 0.0 if self.is_held and is_explained else PREFIX_DOUBT * prefix
        parts = fit(whole, wanted, [prefix_doubt, *(TEXT_DOUBT * tokens for tokens in texts)])
        self.tokens, self.summary_tokens = FixedTokens(parts[0], parts[2]), parts[1]
        return parts[3]


_NAME_CHARS = 200


class PrefixText(NamedTuple):
    """One text of a prefix. Tools have a name."""

    part: Literal["system_prompt", "tool", "reminders", "response_format"]
    text: str
    name: str | None = None


def prefix_parts(
    texts: Sequence[PrefixText], tokens: int, calibration: Calibration, count: Callable[[str], int | None]
) -> tuple[PrefixPart, ...]:
    """Divide the `tokens` of a prefix among its texts; the parts sum to it.

    Of many tools, the smallest become one part. A text of 100,000 characters takes some milliseconds.
    """
    texts = [one for one in texts if one.text]
    sizes = [_size(one, calibration, count) for one in texts]
    are_counted = [is_counted for _, is_counted in sizes]
    shares, keeps_counts = divide(tokens, [size for size, _ in sizes], are_counted)
    others, tools = list[PrefixPart](), list[PrefixPart]()
    for one, share, is_counted in zip(texts, shares, are_counted, strict=True):
        part = _prefix_part(one, share, "tokenizer" if is_counted and keeps_counts else "projected")
        (tools if one.part == "tool" else others).append(part)
    return (*others[:1], *_largest(tools, MAX_PREFIX_PARTS - len(others)), *others[1:])


def _prefix_part(one: PrefixText, tokens: int, basis: Literal["tokenizer", "projected"]) -> PrefixPart:
    name = None if one.name is None else one.name[:_NAME_CHARS]
    return PrefixPart(part=one.part, name=name, tokens=tokens, basis=basis)


def _largest(tools: Sequence[PrefixPart], most: int) -> list[PrefixPart]:
    """Return the tools, largest first. Beyond `most`, the smallest become one part."""
    tools = sorted(tools, key=lambda one: -one.tokens)
    if len(tools) <= most:
        return tools
    smaller = tools[most - 1 :]
    tokens = sum(one.tokens for one in smaller)
    return [*tools[: most - 1], PrefixPart(part="other_tools", count=len(smaller), tokens=tokens, basis="projected")]


def _size(one: PrefixText, calibration: Calibration, count: Callable[[str], int | None]) -> tuple[int, bool]:
    """Return the projected size of a text in a prompt, and whether a trusted tokenizer counted it."""
    counted = count(one.text) if calibration.counts_fit else None
    if counted is None:
        return calibration.project(features(one.text), messages=0), False
    # Each server formats tools in its own way, so only the count of a text that is sent unchanged is correct.
    return counted, one.part in ("system_prompt", "reminders")
