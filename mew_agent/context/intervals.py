"""[pure] The items that reported calls have sent, in intervals from call to call, and the price of each interval.

An interval is `exact` (the difference of two reports, beyond doubt), `measured` (such a difference, in doubt) or a
`lump` (projected). Does not know prefix, summary, the unsent tail, or why an interval is in doubt.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import add, attrgetter
from typing import Literal

from mew_agent.context.measures import Measure
from mew_agent.tokens.projection import Calibration, Units

Kind = Literal["exact", "measured", "lump"]

_SEQ: Callable[[Measure], int] = attrgetter("seq")
# Fixed-point factor for weights: rounding to whole tokens first would distort the shares of small intervals.
_FINE = 1024
# Beyond these bounds the product of many resizes would lose precision.
_SCALES = (1e-6, 1e6)


@dataclass(slots=True, kw_only=True)
class _Amount:
    """Tokens of messages and of tool results."""

    message_tokens: int = 0
    tool_tokens: int = 0
    message_scale: float = 1.0
    tool_scale: float = 1.0

    @property
    def tokens(self) -> int:
        """Message and tool tokens together."""
        return self.message_tokens + self.tool_tokens


@dataclass(slots=True)
class Interval(_Amount):
    """The items first_seq..last_seq. Its scales are those of its pool when the interval joined it."""

    first_seq: int
    last_seq: int
    kind: Kind


@dataclass(slots=True)
class Pool(_Amount):
    """Sums of all intervals of one kind. Resizing the pool resizes each interval in proportion, later.

    Recording a call then costs the same however long the conversation is.
    """

    resized: bool = False

    def resize(self, message_tokens: int, tool_tokens: int) -> bool:
        """Set the sums. Returns whether the intervals must be resized now, before the scales lose precision."""
        if (message_tokens, tool_tokens) == (self.message_tokens, self.tool_tokens):
            return False
        self.message_scale *= message_tokens / self.message_tokens if self.message_tokens else 1.0
        self.tool_scale *= tool_tokens / self.tool_tokens if self.tool_tokens else 1.0
        self.message_tokens, self.tool_tokens, self.resized = message_tokens, tool_tokens, True
        low, high = _SCALES
        return not (low < self.message_scale < high and low < self.tool_scale < high)


@dataclass(slots=True)
class Bulk:
    """Sums to project many items in one step."""

    units: float = 0
    sized_tokens: int = 0
    items: int = 0

    def add(self, measures: Iterable[Measure], calibration: Calibration) -> None:
        """Add items to the sums."""
        for measure in measures:
            self.items += 1
            sized = measure.sized_tokens(calibration)
            if sized is None:
                self.units = self.units + measure.features
            else:
                self.sized_tokens += sized

    def project(self, calibration: Calibration) -> int:
        """Project the tokens of all items together."""
        return self.sized_tokens + calibration.project(self.units, self.items) if self.items else 0


@dataclass
class Intervals:
    """All intervals, oldest first, and their items."""

    items: list[Measure] = field(default_factory=list)
    exact: Pool = field(default_factory=Pool)
    measured: Pool = field(default_factory=Pool)
    lumps: Pool = field(default_factory=Pool)
    lump_items: Bulk = field(default_factory=Bulk)  # the items of all lumps

    _all: list[Interval] = field(default_factory=list)
    _exact_ones: int = 0
    _doubts: list[tuple[int, float, float]] = field(default_factory=list)
    """Pending doubts, oldest first: the number of intervals then, and the scales of the measured pool they joined."""
    _counts: tuple[float, ...] | None = None
    _bare_units: float = 0.0

    def __iter__(self) -> Iterator[Interval]:
        """Each interval with its price. Applies pending changes first."""
        self._apply_pending()
        return iter(self._all)

    @property
    def message_tokens(self) -> int:
        """Tokens of all items except tool results."""
        return self.exact.message_tokens + self.measured.message_tokens + self.lumps.message_tokens

    @property
    def tool_tokens(self) -> int:
        """Tokens of all tool results."""
        return self.exact.tool_tokens + self.measured.tool_tokens + self.lumps.tool_tokens

    @property
    def are_exact(self) -> bool:
        """Whether there are intervals and all are exact."""
        return bool(self._all) and self._exact_ones == len(self._all)

    @property
    def units(self) -> float:
        """Features of all items together."""
        if self._counts is None:
            return self._bare_units
        return Units.from_counts(self._counts) + self._bare_units

    def price(self, first_seq: int, last_seq: int, calibration: Calibration) -> tuple[int, Kind | None]:
        """Return the tokens of the items first_seq..last_seq and the weakest kind among them; None without items."""
        tokens, kinds = 0, set[Kind]()
        for interval in self:
            if interval.last_seq < first_seq or interval.first_seq > last_seq:
                continue
            if first_seq <= interval.first_seq and interval.last_seq <= last_seq:
                tokens += interval.tokens
                kinds.add(interval.kind)
            else:
                # Only the sum of an interval was reported, so a part of it is projected.
                shares = self._shares(interval, calibration)
                tokens += sum(share for seq, share, _ in shares if first_seq <= seq <= last_seq)
                kinds.add("lump")
        return tokens, next((kind for kind in _WEAKEST_FIRST if kind in kinds), None)

    def are_counted(self, first_seq: int, last_seq: int, calibration: Calibration) -> bool:
        """Return whether a tokenizer's counts explain every interval with items of first_seq..last_seq to the token."""
        for interval in self:
            if interval.last_seq >= first_seq and interval.first_seq <= last_seq:
                items = self.items[span(self.items, interval.first_seq, interval.last_seq)]
                if not all(measure.is_counted(calibration) for measure in items):
                    return False
                if sum(measure.project(calibration) for measure in items) != interval.tokens:
                    return False
        return True

    def item_prices(self, calibration: Calibration) -> dict[int, int]:
        """Return the tokens of each item by seq, in one pass; the shares of an interval sum to its price."""
        prices: dict[int, int] = {}
        items = iter(self.items)
        item = next(items, None)
        for interval in self:
            inside = []
            while item is not None and item.seq <= interval.last_seq:
                inside.append(item)
                item = next(items, None)
            prices.update((seq, share) for seq, share, _ in split(interval.tokens, inside, calibration))
        return prices

    def append(
        self, measures: Sequence[Measure], tokens: int, kind: Kind, units: float, calibration: Calibration
    ) -> None:
        """Add an interval: items that a call sent for the first time. `units` are the features of all of them."""
        tool_tokens = 0
        # A list, not a generator: this runs after every call, and most intervals have no tool result.
        if True in [measure.tool_result for measure in measures]:
            tool_tokens = _tool_tokens(split(tokens, measures, calibration))
        self._join(
            Interval(
                measures[0].seq, measures[-1].seq, kind, message_tokens=tokens - tool_tokens, tool_tokens=tool_tokens
            )
        )
        self.items.extend(measures)
        self._count(units)
        if kind == "lump":
            self.lump_items.add(measures, calibration)

    def doubt_all(self) -> None:
        """Demote all exact intervals to measured; their amounts stay."""
        if not self._exact_ones:
            return
        self.measured.message_tokens += self.exact.message_tokens
        self.measured.tool_tokens += self.exact.tool_tokens
        self._doubts.append((len(self._all), self.measured.message_scale, self.measured.tool_scale))
        self.exact, self._exact_ones = Pool(), 0

    def resize_measured(self, message_tokens: int, tool_tokens: int) -> None:
        """Set the sums of the measured intervals; each is resized in proportion."""
        if self.measured.resize(message_tokens, tool_tokens):
            self._apply_pending()

    def resize_lumps(self, message_tokens: int, tool_tokens: int) -> None:
        """Set the sums of the lumps; each is resized in proportion."""
        if self.lumps.resize(message_tokens, tool_tokens):
            self._apply_pending()

    def cut(self, first_seq: int, last_seq: int, calibration: Calibration) -> None:
        """Remove the items first_seq..last_seq. The rest of a divided interval becomes a lump."""
        kept: list[Interval] = []
        for interval in self:
            if interval.last_seq < first_seq or interval.first_seq > last_seq:
                kept.append(interval)
            elif not (first_seq <= interval.first_seq and interval.last_seq <= last_seq):
                kept.extend(self._remains(interval, first_seq, last_seq, calibration))
        left = self.items.copy()
        del left[span(left, first_seq, last_seq)]
        self._rebuild(kept, left, calibration)

    def put_back(self, measures: Sequence[Measure], prices: Mapping[int, int], calibration: Calibration) -> None:
        """Put items back that a cut removed, each as a measured interval at the price it had by its seq."""
        if not measures:
            return
        seqs = sorted(measure.seq for measure in measures)
        kept = [piece for interval in self for piece in self._split_around(seqs, interval, calibration)]
        for measure in measures:
            tokens = max(0, prices.get(measure.seq, measure.project(calibration)))
            tool_tokens = tokens if measure.tool_result else 0
            amount = {"message_tokens": tokens - tool_tokens, "tool_tokens": tool_tokens}
            kept.append(Interval(measure.seq, measure.seq, "measured", **amount))
        items = sorted((*self.items, *measures), key=_SEQ)
        self._rebuild(sorted(kept, key=lambda interval: interval.first_seq), items, calibration)

    def replace(self, new: Mapping[int, Measure], freed: Mapping[int, int], calibration: Calibration) -> None:
        """Replace items by others of the same seq that take `freed` tokens less each. Their intervals become lumps."""
        seqs = sorted(new)
        for interval in self:
            inside = seqs[bisect_left(seqs, interval.first_seq) : bisect_right(seqs, interval.last_seq)]
            if inside:
                tool_freed = sum(freed[seq] for seq in inside if new[seq].tool_result)
                _shrink(interval, sum(freed[seq] for seq in inside) - tool_freed, tool_freed)
        self._rebuild(self._all, [new.get(measure.seq, measure) for measure in self.items], calibration)

    def clear(self) -> None:
        """Remove all intervals."""
        self._rebuild([], [], Calibration())

    def _join(self, interval: Interval) -> None:
        kind = interval.kind
        if kind == "exact":
            # Exact intervals are never resized, so they need no scale.
            pool, self._exact_ones = self.exact, self._exact_ones + 1
        else:
            pool = self.measured if kind == "measured" else self.lumps
            interval.message_scale, interval.tool_scale = pool.message_scale, pool.tool_scale
        pool.message_tokens += interval.message_tokens
        pool.tool_tokens += interval.tool_tokens
        self._all.append(interval)

    def _count(self, units: float) -> None:
        if not isinstance(units, Units):
            self._bare_units += units
        else:
            self._counts = units.counts if self._counts is None else tuple(map(add, self._counts, units.counts))

    def _apply_pending(self) -> None:
        """Apply to each interval the changes noted for all of its kind."""
        if self._doubts:
            self._apply_doubts()
        if self.measured.resized:
            self._apply_scale(self.measured, "measured")
        if self.lumps.resized:
            self._apply_scale(self.lumps, "lump")

    def _apply_doubts(self) -> None:
        place = 0
        for until, message_scale, tool_scale in self._doubts:
            # Earlier doubts have covered everything before `place`.
            for interval in self._all[place:until]:
                if interval.kind == "exact":
                    interval.kind = "measured"
                    interval.message_scale, interval.tool_scale = message_scale, tool_scale
            place = until
        self._doubts.clear()

    def _apply_scale(self, pool: Pool, kind: Kind) -> None:
        inside = [interval for interval in self._all if interval.kind == kind]
        messages = apportion(
            pool.message_tokens,
            [round(i.message_tokens * (pool.message_scale / i.message_scale) * _FINE) for i in inside],
        )
        tools = apportion(
            pool.tool_tokens, [round(i.tool_tokens * (pool.tool_scale / i.tool_scale) * _FINE) for i in inside]
        )
        for interval, message_tokens, tool_tokens in zip(inside, messages, tools, strict=True):
            interval.message_tokens, interval.tool_tokens = message_tokens, tool_tokens
            interval.message_scale = interval.tool_scale = 1.0
        pool.message_scale = pool.tool_scale = 1.0
        pool.resized = False

    def _shares(self, interval: Interval, calibration: Calibration) -> list[tuple[int, int, bool]]:
        items = self.items[span(self.items, interval.first_seq, interval.last_seq)]
        return split(interval.tokens, items, calibration)

    def _split_around(self, seqs: Sequence[int], interval: Interval, calibration: Calibration) -> Iterator[Interval]:
        """Yield an interval in pieces without these seqs between their items; a piece of several is a lump."""
        inside = seqs[bisect_right(seqs, interval.first_seq) : bisect_left(seqs, interval.last_seq)]
        if not inside:
            yield interval
            return
        shares = self._shares(interval, calibration)
        for _, piece in groupby(shares, key=lambda share: bisect_left(inside, share[0])):
            yield _lump(list(piece))

    def _remains(
        self, interval: Interval, first_seq: int, last_seq: int, calibration: Calibration
    ) -> Iterable[Interval]:
        """Return what remains of an interval around a cut: a lump before it, a lump after it, or both."""
        left = [one for one in self._shares(interval, calibration) if not first_seq <= one[0] <= last_seq]
        return (_lump(list(side)) for _, side in groupby(left, key=lambda share: share[0] > last_seq))

    def _rebuild(self, intervals: Iterable[Interval], items: list[Measure], calibration: Calibration) -> None:
        """Start again from these intervals and items. Pending changes must have been applied."""
        self.exact, self.measured, self.lumps = Pool(), Pool(), Pool()
        kept, self._all, self._exact_ones = list(intervals), [], 0
        for interval in kept:
            self._join(interval)
        self.items, self.lump_items, self._counts, self._bare_units = items, Bulk(), None, 0.0
        for measure in items:
            self._count(measure.features)
        for interval in self._all:
            if interval.kind == "lump":
                self.lump_items.add(items[span(items, interval.first_seq, interval.last_seq)], calibration)


def _shrink(interval: Interval, freed: int, tool_freed: int) -> None:
    """Make an interval smaller, as a lump; tool results that had less than they freed take it from the messages."""
    missing = max(0, tool_freed - interval.tool_tokens)
    interval.tool_tokens = max(0, interval.tool_tokens - tool_freed)
    interval.message_tokens -= freed + missing
    interval.kind = "lump"


def _lump(shares: Sequence[tuple[int, int, bool]]) -> Interval:
    """Make a lump of these shares of an interval."""
    tokens, tool_tokens = sum(share for _, share, _ in shares), _tool_tokens(shares)
    return Interval(shares[0][0], shares[-1][0], "lump", message_tokens=tokens - tool_tokens, tool_tokens=tool_tokens)


def _tool_tokens(shares: Iterable[tuple[int, int, bool]]) -> int:
    return sum([share for _, share, is_tool in shares if is_tool])


def span(items: Sequence[Measure], first_seq: int, last_seq: int) -> slice:
    """Return the slice of `items` from first_seq to last_seq."""
    first = bisect_left(items, first_seq, key=_SEQ)
    return slice(first, max(first, bisect_right(items, last_seq, key=_SEQ)))


def split(tokens: int, measures: Sequence[Measure], calibration: Calibration) -> list[tuple[int, int, bool]]:
    """Share a reported figure among its items, as (seq, tokens, is tool result)."""
    sized = [measure.sized_tokens(calibration) is not None for measure in measures]
    shares, _ = divide(tokens, [measure.project(calibration) for measure in measures], sized)
    return [(m.seq, share, m.tool_result) for m, share in zip(measures, shares, strict=True)]


def divide(total: int, sizes: Sequence[int], are_known: Sequence[bool]) -> tuple[list[int], bool]:
    """Split `total` among texts: known sizes stay, and the others share the rest in proportion.

    Returns the shares, and whether known sizes stayed: not if they leave nothing, or if all are known.
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
    """Correct projections so that they sum to `total`; `doubts` is the likely error of each in tokens."""
    missing, squares = total - sum(wanted), sum(doubt * doubt for doubt in doubts)
    if not squares:
        return apportion(total, wanted)
    # The more doubtful a projection, the more of the difference belongs to it. If a correction exceeds its part, all
    # parts are scaled alike instead.
    corrected = [size + round(missing * doubt * doubt / squares) for size, doubt in zip(wanted, doubts, strict=True)]
    return apportion(total, corrected if min(corrected) >= 0 else wanted)


_WEAKEST_FIRST: tuple[Kind, ...] = ("lump", "measured", "exact")
