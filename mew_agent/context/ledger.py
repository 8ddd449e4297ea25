"""[pure] What each part of a conversation takes in tokens: exact for whole intervals, labelled otherwise.

Two reported prompts differ by exactly the items that entered between the two calls, so a cut at call boundaries has an
exact price. Everything else is projected from features and scaled so that the parts of a reported figure sum to it.
Owns these prices, the prediction of the next prompt, and its drift. Does not know texts, policies or thresholds.

Invariant:  prefix + summary + pins + all intervals  =  the last reported prompt, minus later cuts
After them comes the unsent tail: the kept reply and whatever entered since.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Literal, NamedTuple

from mew_agent.context.intervals import Intervals, apportion, fit, span
from mew_agent.context.measures import MOST_TEMPLATE_TOKENS, Measure, most_of_text
from mew_agent.context.persisted_state import PromptAnchor
from mew_agent.context.reconciliation import (
    CountProof,
    Drift,
    Standstill,
    drift_of,
    is_doubtful,
    is_within_drift,
    learn_from_interval,
)
from mew_agent.context.tail import Tail
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import FEATURES, WHOLE_PROMPT_NOISE, Calibration, Units

PriceBasis = Literal["exact", "tokenizer", "projected"]

PREFIX_DOUBT, TEXT_DOUBT = 1.0, 0.1
"""Likely errors of projections, as shares: of system prompt and tools, which templates write in ways that clients
cannot see, and of texts."""

EXPLAINED_SHARE = 1 / 4  # of the doubtful texts: a larger difference is not theirs, so the prefix must have changed

LUMP_REVIEWS = 8  # how many intervals after a lump still improve the division of its total


@dataclass(frozen=True, slots=True)
class Price:
    """Tokens that some items take, and how that is known."""

    tokens: int
    basis: PriceBasis
    has_lump: bool = False  # whether a part of it was never measured


class PromptParts(NamedTuple):
    """The last reported prompt by parts, in tokens, which sum to it; `unsent` comes in addition."""

    prefix: int
    summary: int
    pins: int
    messages: int
    tool_results: int
    unsent: int
    items_exact: bool  # messages and tool results together are exact


@dataclass
class Ledger:
    """The accounts of one conversation with one model. Mutable; no clock, no I/O."""

    calibration: Calibration = field(default_factory=Calibration)
    prefix_tokens: int = 0
    prefix_features: float = 0.0
    summary_tokens: int = 0
    summary_measure: Measure | None = None
    pins_tokens: int = 0
    pins_features: float = 0.0
    prompt_tokens: int | None = None  # the last reported prompt minus later cuts; None before the first report
    backend: str | None = None  # that of the last report
    learnt: dict[str, Calibration] = field(default_factory=dict)
    """Calibrations by served model; `calibration` is that of the latest one."""

    _served_model: str | None = None
    _fingerprint: str | None = None
    _has_moved_backend: bool = False
    _intervals: Intervals = field(default_factory=Intervals)
    _tail: Tail = field(default_factory=Tail)
    _cut_since_record: bool = False
    _moved_since_record: bool = False
    """Whether a cut took anything but whole measured intervals, or put something in their place."""
    _fallen_until: int = -1
    """The newest item when a prompt last fell unexplained: the server dropped some up to it, which may return."""
    _thinking_items: int = 0
    _unsteady_items: int = 0
    _sent_prefix_features: float = 0.0
    _sent_pins_features: float = 0.0
    _count_proof: CountProof = field(default_factory=CountProof)
    _counted_growth: tuple[float, int] | None = None
    """Features of a prefix, and by how many tokens it is larger than the reported one, as the server counts it."""
    _lump_reviews_left: int = 0
    _standstill: Standstill = field(default_factory=Standstill)
    _is_prefix_held: bool = False
    """Whether the last report has the same prefix as the one before it, so that its price is not in doubt."""

    # -- what enters -------------------------------------------------------------------------------------

    def add(self, measure: Measure) -> None:
        """Add an item to the tail. Its price is projected until a call that sends it is reported."""
        self._tail.add(measure, self.calibration)
        self._thinking_items += measure.thinking
        self._unsteady_items += measure.is_unsteady

    def describe_prefix(self, prefix_features: float, pins_features: float = 0.0) -> None:
        """Set the features of the prefix (system prompt, tools) and the pins, which changes the next projection."""
        self.prefix_features, self.pins_features = prefix_features, pins_features
        if self.prompt_tokens is None:
            self.prefix_tokens = self.calibration.project(prefix_features) if prefix_features else 0
            self.pins_tokens = self.calibration.project(pins_features) if pins_features else 0

    @property
    def prefix_growth_tokens(self) -> int:
        """Tokens by which the prefix is larger than the one that the last reported call sent."""
        return self._prefix_change()[0]

    def count_prefix_growth(self, tokens: int) -> None:
        """Set `prefix_growth_tokens` as the server counted it. It is valid while the prefix does not change."""
        self._counted_growth = self.prefix_features, tokens

    # -- reports -----------------------------------------------------------------------------------------

    def record(
        self, usage: Usage, *, served_model: str, fingerprint: str, last_seq: int, backend: str | None
    ) -> Drift | None:
        """Record the usage of a kept main call that sent all items up to `last_seq`. Returns the prediction's drift.

        `backend` is what the provider says of the machine that answered (see `ModelReply`). If it says nothing, a
        router may have changed it unseen, so no interval is exact; once it has changed, the next call may be anywhere.
        """
        reported, before, same_model = usage.prompt_tokens, self.prompt_tokens, served_model == self._served_model
        sent, projected = self._tail.remove_until(last_seq, self.calibration)
        is_same_backend = backend == self.backend
        if before is not None and self._fingerprint is not None and not is_same_backend:
            self._has_moved_backend = True
        self.backend = backend
        is_comparable = before is not None and same_model and is_same_backend and fingerprint == self._fingerprint
        is_whole = is_comparable and not self._cut_since_record and not self._thinking_items
        drift: Drift | None = None
        if before is not None:
            # The prediction: the prompt before, the change of prefix and pins, and the items sent.
            prefix, pins = self._prefix_change()
            predicted = before + prefix + pins + projected
            drift = drift_of(predicted, reported, before, may_be_truncated=is_whole)
        if drift is None or not is_whole:
            self._standstill.reset()
        elif self._standstill.observe(before or 0, reported, projected, is_steady=not self._unsteady_items):
            drift = drift._replace(truncated_by_server=True, window_tokens=reported)
        has_old_calls = self._unsteady_items > self._thinking_items and any(measure.question for measure in sent)
        drift_tokens = drift.tokens if drift is not None and is_comparable else None
        self._count_proof.observe(served_model, drift_tokens, sent, self.calibration, has_old_calls=has_old_calls)
        # After an inexact cut there will be no interval to doubt.
        is_in_doubt = drift is not None and (
            drift.rebased or (not self._moved_since_record and is_doubtful(drift.tokens, sent, self.calibration))
        )
        has_fallen = before is not None and reported < before and not self._cut_since_record
        if has_fallen and is_comparable:
            self._fallen_until = last_seq
        if is_in_doubt or has_fallen or not is_comparable:  # a prompt that only grows cannot fall: something left it
            self._intervals.doubt_all()
        if not same_model and self.learnt:
            # Models have different tokenizers, so what another one taught does not apply.
            self.calibration = self.learnt.get(served_model, Calibration())
        grown = reported - (before or 0)
        # Some providers change the machine with every call. What is as large as predicted still teaches.
        is_close = drift is not None and not drift.rebased and same_model and fingerprint == self._fingerprint
        if (is_comparable or is_close) and sent and grown >= 0 and not self._moved_since_record:
            self._book_interval(sent, grown, is_in_doubt=is_in_doubt or not is_comparable)
        else:
            self._book_lump(sent, projected)
            if before is None or not same_model:
                # A model's first prompt is all there is to learn its factor from. Its system prompt is a message, too.
                units = self.prefix_features + self.pins_features + self._intervals.units
                text_tokens = reported - self.calibration.overhead_tokens * (len(self._intervals.items) + 1)
                self.calibration = self.calibration.observe(text_tokens, units, noise=WHOLE_PROMPT_NOISE)
            self._is_prefix_held = is_comparable
            explains_fall = grown >= 0 or self._cut_since_record or not is_comparable
            self._rescale(reported, measured_may_stay=same_model and explains_fall)
        self._finish_report(reported, served_model, fingerprint)
        return drift

    @property
    def is_backend_steady(self) -> bool:
        """Whether the reports of this conversation name their backend, and it is always the same."""
        return self.backend is not None and not self._has_moved_backend

    def _book_interval(self, sent: Sequence[Measure], grown: int, *, is_in_doubt: bool) -> None:
        units = reduce(add, [measure.features for measure in sent])
        self.calibration = learn_from_interval(self.calibration, grown, sent, units)
        oldest = self._intervals.items[0] if self._intervals.items else sent[0]
        may_return = oldest.seq <= self._fallen_until
        is_exact = self.is_backend_steady and not (
            is_in_doubt or may_return or self._cut_since_record or self._unsteady_items
        )
        self._intervals.append(sent, grown, "exact" if is_exact else "measured", units, self.calibration)
        if self._lump_reviews_left:
            self._review_lumps()

    def _book_lump(self, sent: Sequence[Measure], projected: int) -> None:
        prefix, pins = self._prefix_change()
        self.prefix_tokens += prefix
        self.pins_tokens += pins
        if sent:
            units = reduce(add, [measure.features for measure in sent])
            self._intervals.append(sent, projected, "lump", units, self.calibration)

    def _finish_report(self, reported: int, served_model: str, fingerprint: str) -> None:
        if self._tail.items:
            self._tail.project(self.calibration)
        self.prompt_tokens = reported
        self._served_model, self._fingerprint = served_model, fingerprint
        self._sent_prefix_features, self._sent_pins_features = self.prefix_features, self.pins_features
        self.learnt[served_model] = self.calibration
        self._cut_since_record = self._moved_since_record = False

    # -- restarts ----------------------------------------------------------------------------------------

    def anchor(self, model: str) -> PromptAnchor | None:
        """Return the last reported prompt, for `resume`; None without a report or without features of its prefix."""
        prefix, pins, items = self._sent_prefix_features, self._sent_pins_features, self._intervals.items
        if self.prompt_tokens is None or not isinstance(prefix, Units):
            return None
        return PromptAnchor(
            prompt_tokens=self.prompt_tokens,
            last_seq=items[-1].seq if items else -1,
            prefix_counts=prefix.counts,
            pins_counts=pins.counts if isinstance(pins, Units) else (),
            model=model,
        )

    def resume(self, anchor: PromptAnchor, served_model: str | None) -> None:
        """Continue from a prompt that an earlier process recorded: its items become one lump."""
        if len(anchor.prefix_counts) != FEATURES:
            return  # another version stored it, whose features mean something else
        pins = Units.from_counts(anchor.pins_counts) if anchor.pins_counts else 0.0
        self.describe_prefix(Units.from_counts(anchor.prefix_counts), pins)
        self._sent_prefix_features, self._sent_pins_features = self.prefix_features, self.pins_features
        self._book_lump(*self._tail.remove_until(anchor.last_seq, self.calibration))
        self._rescale(anchor.prompt_tokens, measured_may_stay=True)
        self._tail.project(self.calibration)
        self.prompt_tokens, self._served_model = anchor.prompt_tokens, served_model
        self._cut_since_record = self._moved_since_record = False

    # -- what leaves -------------------------------------------------------------------------------------

    def price(self, first_seq: int, last_seq: int) -> Price:
        """Return what the items first_seq..last_seq take in the next prompt; exact only for whole exact intervals."""
        tokens, kind = self._intervals.price(first_seq, last_seq, self.calibration)
        unsent = self._tail.between(first_seq, last_seq)
        tokens += sum(measure.project(self.calibration) for measure in unsent)
        if kind == "exact" and not unsent and not self._unsteady_items and tokens:
            return Price(tokens, "exact")
        basis: PriceBasis = "tokenizer" if self._is_counted(first_seq, last_seq) else "projected"
        return Price(tokens, basis, has_lump=kind == "lump")

    def item_prices(self) -> dict[int, int]:
        """Return each item's tokens in the next prompt by seq; those of an interval sum to its price."""
        prices = self._intervals.item_prices(self.calibration)
        prices.update((measure.seq, measure.project(self.calibration)) for measure in self._tail.items)
        return prices

    def most_tokens(self) -> tuple[int, dict[int, int]]:
        """Return upper bounds from the texts alone: of prefix and pins together, and of each item by seq."""
        measures = (*self._intervals.items, *self._tail.items)
        fixed = most_of_text(self.prefix_features + self.pins_features) + MOST_TEMPLATE_TOKENS
        return fixed, {measure.seq: measure.most_tokens(self.calibration) for measure in measures}

    def cut(self, first_seq: int, last_seq: int) -> Price:
        """Remove the items first_seq..last_seq. Returns what that frees, gross."""
        price = self.price(first_seq, last_seq)
        self._intervals.cut(first_seq, last_seq, self.calibration)
        self._tail.cut(first_seq, last_seq, self.calibration)
        # A measured interval leaves with its own figure, a lump with an estimate, which blurs the next difference.
        self._note_change(moved=price.has_lump)
        return price

    def replace_items(self, measures: Iterable[Measure]) -> Price:
        """Replace items by shorter ones of the same seq (stubs), in one pass. Returns what that frees."""
        new = {measure.seq: measure for measure in measures}
        is_counted = all(self._is_counted(seq, seq) and m.is_counted(self.calibration) for seq, m in new.items())
        before = self.item_prices()
        freed = {seq: max(0, before.get(seq, 0) - m.project(self.calibration)) for seq, m in new.items()}
        self._intervals.replace(new, freed, self.calibration)
        self._tail.replace(new, self.calibration)
        self._note_change(moved=True)
        return Price(sum(freed.values()), "tokenizer" if is_counted else "projected")

    def put_back(
        self, returned: Sequence[Measure], replaced: Sequence[Measure], prices: Mapping[int, int], booked_until: int
    ) -> None:
        """Put items back that a cut removed, and texts in place of their notes, at the prices (by seq) they had.

        Before a report, and after `booked_until` and the newest reported item, they were not sent and are not now.
        """
        if replaced:
            # What a note saved is the price before minus its own projection, so that much returns.
            new = {measure.seq: measure for measure in replaced}
            had = {seq: prices.get(seq, measure.project(self.calibration)) for seq, measure in new.items()}
            freed = {seq: min(0, self.projection(seq) - tokens) for seq, tokens in had.items()}
            self._intervals.replace(new, freed, self.calibration)
            self._tail.replace(new, self.calibration)
        sent_until = -1 if self.prompt_tokens is None else max(booked_until, self.booked_until)
        self._intervals.put_back([m for m in returned if m.seq <= sent_until], prices, self.calibration)
        self._tail.put_back([m for m in returned if m.seq > sent_until], self.calibration)
        self._note_change(moved=True)

    @property
    def booked_until(self) -> int:
        """The seq of the newest item in a reported prompt; -1 if there is none."""
        return self._intervals.items[-1].seq if self._intervals.items else -1

    def set_summary(self, measure: Measure | None, tokens: int | None = None) -> int:
        """Set or remove the summary that replaces cut items. Returns its tokens: `tokens` if known, else projected."""
        self.summary_measure = measure
        self.summary_tokens = 0 if measure is None else tokens or measure.project(self.calibration)
        self._note_change(moved=True)
        return self.summary_tokens

    def correct_cut(self, excess_tokens: int, summary_tokens: int | None) -> None:
        """Correct the books after a cut: they have `excess_tokens` too many. Pass the summary's size if it is known."""
        books = max(0, self._books_tokens() - excess_tokens)
        if self.summary_measure is not None and summary_tokens is not None:
            text_tokens = max(0, summary_tokens - self.calibration.wrap(0))
            self.summary_measure = replace(self.summary_measure, known_tokens=text_tokens)
            self.summary_tokens = summary_tokens
        self._rescale(books, measured_may_stay=True)
        self._note_change(moved=True)

    def clear(self) -> None:
        """Remove all items and the summary; what was learnt about the model stays."""
        self._intervals.clear()
        self._tail = Tail()
        self.summary_measure, self.summary_tokens = None, 0
        self.prompt_tokens, self._fallen_until, self._has_moved_backend = None, -1, False
        self._note_change(moved=True)
        # Without a reported prompt the prefix is projected again.
        self.describe_prefix(self.prefix_features, self.pins_features)

    # -- reading -----------------------------------------------------------------------------------------

    @property
    def next_prompt_tokens(self) -> int:
        """Projected size of the next request if nothing else is added."""
        prefix, pins = self._prefix_change()
        # After a report the books sum to the prompt, so there is no need to add them up.
        books = self._books_tokens() if self.prompt_tokens is None else self.prompt_tokens
        return books + prefix + pins + self._tail.tokens

    @property
    def next_prompt_basis(self) -> Literal["tokenizer", "projected", "heuristic"]:
        """Basis of `next_prompt_tokens`: `heuristic` before the first report, then how all changes since are known."""
        if self.prompt_tokens is None:
            return "heuristic"
        if self._tail.is_counted and not self._moved_since_record and not any(self._prefix_change()):
            return "tokenizer"
        return "projected"

    def agrees_with_count(self, counted_tokens: int) -> bool:
        """Return whether a server's count of the next prompt fits what the same server reported."""
        if self.prompt_tokens is None:
            return True
        return is_within_drift(self.next_prompt_tokens - counted_tokens, counted_tokens, self._tail.tokens)

    def unsent_price(self, seq: int) -> int:
        """Return the projected tokens of one item of the unsent tail; 0 if it is not in the tail."""
        return sum([measure.project(self.calibration) for measure in self._tail.between(seq, seq)])

    def projection(self, seq: int) -> int:
        """Project the tokens of one item, sent or unsent, by its measure alone; 0 if there is no such item."""
        found = self._tail.between(seq, seq) or self._intervals.items[span(self._intervals.items, seq, seq)]
        return sum([measure.project(self.calibration) for measure in found])

    @property
    def parts(self) -> PromptParts:
        """The last reported prompt by parts, and the unsent tail."""
        intervals = self._intervals
        items = intervals.message_tokens, intervals.tool_tokens, self._tail.tokens, intervals.are_exact
        return PromptParts(self.prefix_tokens, self.summary_tokens, self.pins_tokens, *items)

    # -- internals ---------------------------------------------------------------------------------------

    def _books_tokens(self) -> int:
        items = self._intervals.message_tokens + self._intervals.tool_tokens
        return self.prefix_tokens + self.summary_tokens + self.pins_tokens + items

    def _prefix_change(self) -> tuple[int, int]:
        """Return by how many tokens prefix and pins differ from those that the last reported call sent."""
        if self.prompt_tokens is None:
            return 0, 0
        if self.prefix_features is self._sent_prefix_features and self.pins_features is self._sent_pins_features:
            # Read several times per call, so the usual case takes a shortcut.
            return 0, 0
        prefix = round(self.calibration.tokens(self.prefix_features - self._sent_prefix_features))
        if self._counted_growth is not None and self._counted_growth[0] is self.prefix_features:
            prefix = self._counted_growth[1]
        pins = round(self.calibration.tokens(self.pins_features - self._sent_pins_features))
        return max(-self.prefix_tokens, prefix), max(-self.pins_tokens, pins)

    def _is_counted(self, first_seq: int, last_seq: int) -> bool:
        """Return whether a tokenizer whose counts have proven right counted all of these items."""
        return (
            not self._has_moved_backend
            and self._count_proof.is_proven(has_calls=self._unsteady_items > 0)
            and not self._thinking_items
            and all(measure.is_counted(self.calibration) for measure in self._tail.between(first_seq, last_seq))
            and self._intervals.are_counted(first_seq, last_seq, self.calibration)
        )

    @property
    def is_summary_counted(self) -> bool:
        """Whether the tokens of the summary are the count of a tokenizer that has proven right."""
        measure = self.summary_measure
        return (
            measure is not None
            and not self._has_moved_backend
            and self._count_proof.is_proven()
            and measure.is_counted(self.calibration)
            and measure.project(self.calibration) == self.summary_tokens
        )

    def _review_lumps(self) -> None:
        """Divide lumps again within their reported total: the first intervals of a model teach how they divide."""
        self._lump_reviews_left -= 1
        lumps = self._intervals.lumps
        whole = self.prefix_tokens + self.summary_tokens + self.pins_tokens + lumps.tokens
        prefix = self.prefix_tokens
        if not self._is_prefix_held:
            prefix = self.calibration.project(self.prefix_features) if self.prefix_features else 0
        summary = self.summary_measure.project(self.calibration) if self.summary_measure else 0
        pins = self.calibration.project(self.pins_features) if self.pins_features else 0
        lump_tokens = self._intervals.lump_items.project(self.calibration)
        tokens = self._divide(whole, prefix, summary, pins, lump_tokens)
        tool_tokens = lumps.tool_tokens * tokens // lumps.tokens if lumps.tokens else 0
        self._intervals.resize_lumps(tokens - tool_tokens, tool_tokens)

    def _divide(self, whole: int, prefix: int, summary: int, pins: int, lumps: int) -> int:
        """Divide `whole` in these proportions, the difference by doubt. Returns the share of the lumps."""
        measure = self.summary_measure
        is_summary_sized = measure is not None and measure.sized_tokens(self.calibration) is not None
        unsized = max(0, lumps - self._intervals.lump_items.sized_tokens)
        texts = [0 if is_summary_sized else summary, pins, unsized]
        missing = whole - prefix - summary - pins - lumps
        is_explained = abs(missing) <= EXPLAINED_SHARE * sum(texts)
        prefix_doubt = 0.0 if self._is_prefix_held and is_explained else PREFIX_DOUBT * prefix
        doubts = [prefix_doubt, *(TEXT_DOUBT * tokens for tokens in texts)]
        parts = fit(whole, [prefix, summary, pins, lumps], doubts)
        self.prefix_tokens, self.summary_tokens, self.pins_tokens, share = parts
        return share

    def _rescale(self, reported: int, *, measured_may_stay: bool) -> None:
        """Make the parts sum to a reported prompt by changing those that are known least.

        Measured intervals keep their size if only their surroundings changed and enough remains for the rest. Exact
        intervals are doubted if less than half of what the rest should take remains.
        """
        intervals = self._intervals
        lumps, measured = intervals.lumps, intervals.measured
        loose = self.prefix_tokens + self.summary_tokens + self.pins_tokens + lumps.tokens
        left = reported - intervals.exact.tokens - measured.tokens
        if left * 2 < loose:
            intervals.doubt_all()
        if left >= 0 and measured_may_stay:
            tokens = self._divide(left, self.prefix_tokens, self.summary_tokens, self.pins_tokens, lumps.tokens)
            intervals.resize_lumps(*apportion(tokens, [lumps.message_tokens, lumps.tool_tokens]))
        else:
            weights = [self.prefix_tokens, self.summary_tokens, self.pins_tokens, lumps.message_tokens]
            weights += [lumps.tool_tokens, measured.message_tokens, measured.tool_tokens]
            fitted = apportion(max(0, left + measured.tokens), weights)
            self.prefix_tokens, self.summary_tokens, self.pins_tokens = fitted[:3]
            intervals.resize_lumps(*fitted[3:5])
            intervals.resize_measured(*fitted[5:])
        self._lump_reviews_left = LUMP_REVIEWS

    def _note_change(self, *, moved: bool) -> None:
        measures = (*self._intervals.items, *self._tail.items)
        self._thinking_items = sum(measure.thinking for measure in measures)
        self._unsteady_items = sum(measure.is_unsteady for measure in measures)
        if self.prompt_tokens is not None:
            self.prompt_tokens = self._books_tokens()
        self._cut_since_record = True
        self._moved_since_record = self._moved_since_record or moved
