"""[pure] The sizes of history items, grouped into intervals between calls, each with its price in tokens.

An interval is `exact` (a certain difference of two reports), `measured` (an uncertain difference) or a `lump`
(projected). Unsent items only have a projected size. Reports and doubts about them are in `ledger`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple

from mew_agent.context.item_sizes import ItemSize
from mew_agent.tokens.projection import NO_UNITS, Calibration

_SEQ: Callable[[ItemSize], int] = attrgetter("seq")


@dataclass
class Items:
    """All items, oldest first. Adding an item and reading a sum take constant time."""

    sizes: list[ItemSize] = field(default_factory=list)
    unsent_tokens: int = 0  # projected size of all unsent items together
    unsent_units: float = NO_UNITS  # features of all unsent items together
    thinking: int = 0  # number of replies with thinking
    unsteady: int = 0  # number of replies with thinking or tool calls

    _sent: int = 0  # the first so many sizes were sent by a reported call
    _projected: int = 0  # number of unsent items that are projected from features
    _counted: int = 0  # number of unsent items that a trusted tokenizer counted

    @property
    def sent_until(self) -> int:
        """The seq of the newest item in a reported prompt; -1 if there is none."""
        return self.sizes[self._sent - 1].seq if self._sent else -1

    @property
    def is_unsent_counted(self) -> bool:
        """Whether a tokenizer counted some unsent items, and none is projected from features."""
        return self._counted > 0 and not self._projected

    @property
    def sent(self) -> Sequence[ItemSize]:
        """The items that a reported call has sent."""
        return self.sizes[: self._sent]

    @property
    def sent_count(self) -> int:
        """Number of items that a reported call has sent."""
        return self._sent

    @property
    def unsent(self) -> Sequence[ItemSize]:
        """The items that no reported call has sent."""
        return self.sizes[self._sent :]

    def add(self, size: ItemSize, calibration: Calibration) -> None:
        """Add an unsent item."""
        self.sizes.append(size)
        self.thinking += size.thinking
        self.unsteady += size.is_unsteady
        self._add_to_sums(size, calibration)

    def between(self, first_seq: int, last_seq: int) -> list[ItemSize]:
        """Return the items first_seq..last_seq."""
        return self.sizes[span(self.sizes, first_seq, last_seq)]

    def unsent_between(self, first_seq: int, last_seq: int) -> list[ItemSize]:
        """Return the unsent items among first_seq..last_seq."""
        return self.between(max(first_seq, self.sent_until + 1), last_seq)

    def send(self, last_seq: int, calibration: Calibration) -> tuple[list[ItemSize], int, float]:
        """Mark all items up to `last_seq` as sent. Returns the new ones, their projected size and their features."""
        sizes, first, tokens, units = self.sizes, self._sent, self.unsent_tokens, self.unsent_units
        if first == len(sizes) or sizes[-1].seq <= last_seq:  # the usual case: everything was sent
            self._sent = len(sizes)
            self.unsent_tokens = self._projected = self._counted = 0
            self.unsent_units = NO_UNITS
            return sizes[first:], tokens, units
        self._sent = max(first, bisect_right(sizes, last_seq, key=_SEQ))
        self.project(calibration)
        sent = sizes[first : self._sent]
        return sent, tokens - self.unsent_tokens, sum((size.features for size in sent), NO_UNITS)

    def set(self, sizes: Sequence[ItemSize], sent_until: int, calibration: Calibration) -> None:
        """Replace all items; those up to `sent_until` count as sent."""
        self.sizes = sorted(sizes, key=_SEQ)
        self._sent = bisect_right(self.sizes, sent_until, key=_SEQ)
        self.thinking = sum(size.thinking for size in self.sizes)
        self.unsteady = sum(size.is_unsteady for size in self.sizes)
        self.project(calibration)

    def project(self, calibration: Calibration) -> None:
        """Sum the projected tokens of unsent items with this calibration."""
        self.unsent_tokens = self._projected = self._counted = 0
        self.unsent_units = NO_UNITS
        for size in self.unsent:
            self._add_to_sums(size, calibration)

    def _add_to_sums(self, size: ItemSize, calibration: Calibration) -> None:
        self.unsent_tokens += size.project(calibration)
        self.unsent_units += size.features
        is_counted = size.is_counted(calibration)
        self._counted += is_counted
        self._projected += not is_counted and size.known_tokens is None


def span(sizes: Sequence[ItemSize], first_seq: int, last_seq: int) -> slice:
    """Return the sizes first_seq..last_seq as a slice."""
    first = bisect_left(sizes, first_seq, key=_SEQ)
    return slice(first, max(first, bisect_right(sizes, last_seq, key=_SEQ)))


Kind = Literal["exact", "measured", "lump"]

# Fixed-point factor for weights: rounding to whole tokens first would distort the shares of small intervals.
_FINE = 1024
_LEAST_PRICE = 1e-6  # of a share, so that a fund of 0 tokens can take new ones


@dataclass(slots=True)
class Fund:
    """Tokens divided into shares. A change of the tokens changes each owner's part in proportion, in constant time."""

    tokens: int = 0
    shares: float = 0.0

    @property
    def price(self) -> float:
        """Tokens of one share."""
        return max(_LEAST_PRICE, self.tokens / self.shares) if self.shares else 1.0

    def join(self, tokens: float) -> float:
        """Add tokens. Returns the shares issued for them."""
        if self.tokens == self.shares:  # the usual case: a share is a token
            self.tokens += round(tokens)
            self.shares += tokens
            return tokens
        price = self.price
        self.tokens, self.shares = self.tokens + round(tokens), self.shares + tokens / price
        return tokens / price

    def divided(self, shares: Sequence[float]) -> list[int]:
        """Divide the tokens among the owners of all shares."""
        price = self.price * _FINE
        return apportion(self.tokens, [round(one * price) for one in shares])


@dataclass(slots=True)
class Interval:
    """The items first_seq..last_seq, with their shares of the funds. A share of an exact interval is one token."""

    first_seq: int
    last_seq: int
    kind: Kind
    messages: float  # all items except tool results
    tools: float

    @property
    def tokens(self) -> int:
        """Message and tool tokens together, once the funds are divided."""
        return round(self.messages + self.tools)


class Pool(NamedTuple):
    """All intervals of one kind."""

    messages: Fund
    tools: Fund

    @property
    def tokens(self) -> int:
        """Message and tool tokens together."""
        return self.messages.tokens + self.tools.tokens


@dataclass(slots=True)
class Bulk:
    """Sums that project many items in one step."""

    units: float = 0
    sized_tokens: int = 0
    items: int = 0

    def add(self, sizes: Iterable[ItemSize], calibration: Calibration) -> None:
        """Add items to the sums."""
        for size in sizes:
            self.items += 1
            sized = size.sized_tokens(calibration)
            if sized is None:
                self.units = self.units + size.features
            else:
                self.sized_tokens += sized

    def project(self, calibration: Calibration) -> int:
        """Project the tokens of all items together."""
        return self.sized_tokens + calibration.project(self.units, self.items) if self.items else 0


@dataclass
class Intervals:
    """All intervals, oldest first. Recording a call takes constant time."""

    exact: Pool = field(default_factory=lambda: Pool(Fund(), Fund()))
    measured: Pool = field(default_factory=lambda: Pool(Fund(), Fund()))
    lumps: Pool = field(default_factory=lambda: Pool(Fund(), Fund()))
    lump_items: Bulk = field(default_factory=Bulk)  # the items of all lumps
    _units: list[float] = field(default_factory=list)  # features of all items together, in parts

    _all: list[Interval] = field(default_factory=list)
    _exact_ones: int = 0

    def __iter__(self) -> Iterator[Interval]:
        """Yield each interval with its tokens."""
        self._divide()
        return iter(self._all)

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of all items except tool results, and of all tool results."""
        exact, measured, lumps = self.exact, self.measured, self.lumps
        return (
            exact.messages.tokens + measured.messages.tokens + lumps.messages.tokens,
            exact.tools.tokens + measured.tools.tokens + lumps.tools.tokens,
        )

    @property
    def are_exact(self) -> bool:
        """Whether there are intervals, and all are exact."""
        return bool(self._all) and self._exact_ones == len(self._all)

    @property
    def units(self) -> float:
        """Features of all items together. Each part is added once, so that a call takes constant time."""
        self._units = [sum(self._units, 0.0)]
        return self._units[0]

    def price(
        self, items: Sequence[ItemSize], first_seq: int, last_seq: int, calibration: Calibration
    ) -> tuple[int, Kind | None]:
        """Return the tokens of the items first_seq..last_seq and their least certain kind; None without items."""
        tokens, kinds = 0, set[Kind]()
        for interval, is_whole in self._overlapping(first_seq, last_seq):
            if is_whole:
                tokens += interval.tokens
                kinds.add(interval.kind)
            else:
                # Only the sum of an interval was reported, so a part of it is projected.
                shares = _shares(interval, items, calibration)
                tokens += sum(share.tokens for share in shares if first_seq <= share.seq <= last_seq)
                kinds.add("lump")
        return tokens, next((kind for kind in _WEAKEST_FIRST if kind in kinds), None)

    def are_counted(self, items: Sequence[ItemSize], first_seq: int, last_seq: int, calibration: Calibration) -> bool:
        """Return whether a tokenizer's counts exactly explain every interval with items of first_seq..last_seq."""
        for interval, _ in self._overlapping(first_seq, last_seq):
            inside = items[span(items, interval.first_seq, interval.last_seq)]
            if not all(size.is_counted(calibration) for size in inside):
                return False
            if sum(size.project(calibration) for size in inside) != interval.tokens:
                return False
        return True

    def item_prices(self, items: Iterable[ItemSize], calibration: Calibration) -> dict[int, int]:
        """Return the tokens of each sent item by seq. The items of an interval sum to its price."""
        prices: dict[int, int] = {}
        rest = iter(items)
        item = next(rest, None)
        for interval in self:
            inside = []
            while item is not None and item.seq <= interval.last_seq:
                inside.append(item)
                item = next(rest, None)
            prices.update((share.seq, share.tokens) for share in split(interval.tokens, inside, calibration))
        return prices

    def append(
        self, sizes: Sequence[ItemSize], tokens: int, kind: Kind, units: float, calibration: Calibration
    ) -> None:
        """Add an interval of newly sent items. `units` are their summed features."""
        tool_tokens = 0
        # A list, not a generator: this runs after every call, and most intervals have no tool result.
        if True in [size.tool_result for size in sizes]:
            tool_tokens = _tool_tokens(split(tokens, sizes, calibration))
        self._join(Interval(sizes[0].seq, sizes[-1].seq, kind, tokens - tool_tokens, tool_tokens))
        self._units.append(units)
        if kind == "lump":
            self.lump_items.add(sizes, calibration)

    def doubt_all(self) -> None:
        """Change all exact intervals to measured; their amounts stay."""
        if not self._exact_ones:
            return
        messages, tools = self.measured
        message_price, tool_price = messages.price, tools.price
        # From the newest one: intervals before the last doubt are not exact, so a doubt affects only the later ones.
        for interval in reversed(self._all):
            if not self._exact_ones:
                break
            if interval.kind == "exact":
                interval.kind = "measured"
                interval.messages, interval.tools = interval.messages / message_price, interval.tools / tool_price
                self._exact_ones -= 1
        messages.join(self.exact.messages.tokens)
        tools.join(self.exact.tools.tokens)
        self.exact, self._exact_ones = Pool(Fund(), Fund()), 0

    def cut(self, items: Sequence[ItemSize], first_seq: int, last_seq: int, calibration: Calibration) -> None:
        """Remove the items first_seq..last_seq. The rest of a divided interval becomes a lump."""
        kept: list[Interval] = []
        left = [size for size in items if not first_seq <= size.seq <= last_seq]
        for interval in self:
            if interval.last_seq < first_seq or interval.first_seq > last_seq:
                kept.append(interval)
                continue
            rest = [share for share in _shares(interval, items, calibration) if not first_seq <= share.seq <= last_seq]
            kept.extend(_lump(list(side)) for _, side in groupby(rest, key=lambda share: share.seq > last_seq))
        self._rebuild(kept, left, calibration)

    def put_back(
        self,
        items: Sequence[ItemSize],
        returned: Sequence[ItemSize],
        prices: Mapping[int, int],
        calibration: Calibration,
    ) -> None:
        """Restore items that a cut removed, each as a measured interval at its earlier price (by seq)."""
        seqs = sorted(size.seq for size in returned)
        kept = [piece for interval in self for piece in _split_around(seqs, interval, items, calibration)]
        for size in returned:
            tokens = max(0, prices.get(size.seq, size.project(calibration)))
            tools = tokens if size.tool_result else 0
            kept.append(Interval(size.seq, size.seq, "measured", tokens - tools, tools))
        sent = sorted((*items, *returned), key=lambda size: size.seq)
        self._rebuild(sorted(kept, key=lambda interval: interval.first_seq), sent, calibration)

    def replace(
        self,
        items: Sequence[ItemSize],
        new: Mapping[int, ItemSize],
        freed: Mapping[int, int],
        calibration: Calibration,
    ) -> None:
        """Replace items by others with the same seqs, each `freed` tokens smaller. Their intervals become lumps."""
        seqs = sorted(new)
        for interval in self:
            inside = seqs[bisect_left(seqs, interval.first_seq) : bisect_right(seqs, interval.last_seq)]
            if inside:
                tool_freed = sum(freed[seq] for seq in inside if new[seq].tool_result)
                _shrink(interval, sum(freed[seq] for seq in inside) - tool_freed, tool_freed)
        self._rebuild(self._all, [new.get(size.seq, size) for size in items], calibration)

    def _overlapping(self, first_seq: int, last_seq: int) -> Iterator[tuple[Interval, bool]]:
        """Yield the intervals with any of these seqs, and whether these seqs cover all their items."""
        for interval in self:
            if interval.last_seq >= first_seq and interval.first_seq <= last_seq:
                yield interval, first_seq <= interval.first_seq and interval.last_seq <= last_seq

    def _join(self, interval: Interval) -> None:
        pool = self.measured
        if interval.kind != "measured":
            pool = self.exact if interval.kind == "exact" else self.lumps
        self._exact_ones += pool is self.exact
        interval.messages = pool.messages.join(interval.messages)
        if interval.tools:  # most intervals have no tool result
            interval.tools = pool.tools.join(interval.tools)
        self._all.append(interval)

    def _divide(self) -> None:
        """Give each interval the tokens of its shares."""
        for kind, pool in (("measured", self.measured), ("lump", self.lumps)):
            if all(fund.tokens == fund.shares for fund in pool):
                continue
            inside = [interval for interval in self._all if interval.kind == kind]
            messages = pool.messages.divided([interval.messages for interval in inside])
            tools = pool.tools.divided([interval.tools for interval in inside])
            for interval, message_tokens, tool_tokens in zip(inside, messages, tools, strict=True):
                interval.messages, interval.tools = message_tokens, tool_tokens
            pool.messages.shares, pool.tools.shares = pool.messages.tokens, pool.tools.tokens

    def _rebuild(self, intervals: Iterable[Interval], items: Sequence[ItemSize], calibration: Calibration) -> None:
        """Start again from these intervals and items. Divide the funds first."""
        kept = list(intervals)
        self.exact, self.measured, self.lumps = Pool(Fund(), Fund()), Pool(Fund(), Fund()), Pool(Fund(), Fund())
        self.lump_items, self._all, self._exact_ones = Bulk(), [], 0
        self._units = [size.features for size in items]
        for interval in kept:
            self._join(interval)
            if interval.kind == "lump":
                self.lump_items.add(items[span(items, interval.first_seq, interval.last_seq)], calibration)


class ItemShare(NamedTuple):
    """One item's part of a reported figure."""

    seq: int
    tokens: int
    is_tool_result: bool


def split(tokens: int, sizes: Sequence[ItemSize], calibration: Calibration) -> list[ItemShare]:
    """Divide a reported figure among its items."""
    sized = [size.sized_tokens(calibration) is not None for size in sizes]
    shares, _ = divide(tokens, [size.project(calibration) for size in sizes], sized)
    return [ItemShare(m.seq, share, m.tool_result) for m, share in zip(sizes, shares, strict=True)]


def _shares(interval: Interval, items: Sequence[ItemSize], calibration: Calibration) -> list[ItemShare]:
    return split(interval.tokens, items[span(items, interval.first_seq, interval.last_seq)], calibration)


def _split_around(
    seqs: Sequence[int], interval: Interval, items: Sequence[ItemSize], calibration: Calibration
) -> Iterator[Interval]:
    """Yield an interval in pieces around these seqs; a piece of several items is a lump."""
    inside = seqs[bisect_right(seqs, interval.first_seq) : bisect_left(seqs, interval.last_seq)]
    if not inside:
        yield interval
        return
    shares = _shares(interval, items, calibration)
    for _, piece in groupby(shares, key=lambda share: bisect_left(inside, share.seq)):
        yield _lump(list(piece))


def _shrink(interval: Interval, freed: int, tool_freed: int) -> None:
    """Make an interval smaller, as a lump. If tool results freed more than they had, messages lose the difference."""
    missing = max(0, tool_freed - interval.tools)
    interval.tools = max(0, interval.tools - tool_freed)
    interval.messages -= freed + missing
    interval.kind = "lump"


def _lump(shares: Sequence[ItemShare]) -> Interval:
    """Create a lump from these shares of an interval."""
    tokens, tools = sum(share.tokens for share in shares), _tool_tokens(shares)
    return Interval(shares[0].seq, shares[-1].seq, "lump", tokens - tools, tools)


def _tool_tokens(shares: Iterable[ItemShare]) -> int:
    return sum([share.tokens for share in shares if share.is_tool_result])


def divide(total: int, sizes: Sequence[int], are_known: Sequence[bool]) -> tuple[list[int], bool]:
    """Split `total` among texts: known sizes stay, and the others share the rest in proportion.

    Returns the shares, and whether known sizes stayed. They do not if they leave nothing, or if all are known.
    """
    known = sum([size for size, is_known in zip(sizes, are_known, strict=True) if is_known])
    unknown = [size for size, is_known in zip(sizes, are_known, strict=True) if not is_known]
    if not unknown or known >= total:
        return apportion(total, sizes), False
    rest = iter(apportion(total - known, unknown))
    return [size if is_known else next(rest) for size, is_known in zip(sizes, are_known, strict=True)], True


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` into integers in proportion to the weights, summing to it exactly (largest remainder)."""
    if not weights:
        return []
    whole = sum(weights)
    if whole <= 0:
        return [total, *[0] * (len(weights) - 1)]
    shares = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in order[: total - sum(shares)]:
        shares[i] += 1
    return shares


def fit(total: int, wanted: Sequence[int], doubts: Sequence[float]) -> list[int]:
    """Correct projections to sum to `total`; `doubts` are their likely errors in tokens."""
    missing, squares = total - sum(wanted), sum(doubt * doubt for doubt in doubts)
    if not squares:
        return apportion(total, wanted)
    # A more doubtful projection gets more of the difference. If a correction exceeds its part, scale all parts alike
    # instead.
    corrected = [size + round(missing * doubt * doubt / squares) for size, doubt in zip(wanted, doubts, strict=True)]
    return apportion(total, corrected if min(corrected) >= 0 else wanted)


_WEAKEST_FIRST: tuple[Kind, ...] = ("lump", "measured", "exact")
