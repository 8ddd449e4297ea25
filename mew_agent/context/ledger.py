"""[pure] What each stretch of a conversation costs in tokens: exact for whole intervals, labelled otherwise.

Two reported prompts differ by exactly the items that entered between the two calls, so a cut that begins and
ends at call bounds has an exact price. Everything else is projected: feature counts times the model's factor k,
scaled so that the parts of a reported figure sum to it. Owned here: those prices, the prediction of the next
prompt, and its drift from what the provider then reported. Not known here: texts, policies, thresholds.

The books, at any moment:  prefix + summary + pins + all spans  =  the last reported prompt (minus later cuts)
and behind them the unsent tail: the kept reply and whatever entered since.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mew_agent.context.drift import Drift, drift_of, is_doubtful
from mew_agent.context.intervals import Intervals, Kind
from mew_agent.context.measures import Measure
from mew_agent.context.outcomes import Anchor
from mew_agent.context.shares import apportion, fit
from mew_agent.context.tail import Tail
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import FEATURES, WHOLE_PROMPT_NOISE, Calibration, Units

__all__ = ["Drift", "Ledger", "Measure", "Price", "PriceBasis", "PromptParts", "TailBasis"]

PriceBasis = Literal["exact", "projected"]
TailBasis = Literal["tokenizer", "projected", "heuristic"]

LUMP_REVIEWS = 8
"""After how many further intervals a lump is no longer shared anew."""


@dataclass(frozen=True, slots=True)
class Price:
    """Tokens of some items and how that is known."""

    tokens: int
    basis: PriceBasis


class PromptParts(NamedTuple):
    """The last reported prompt, split. All tokens; they sum to it. `exact` says which parts are exact."""

    prefix: int
    summary: int
    pins: int
    messages: int
    tool_results: int
    unsent: int
    items_exact: bool


@dataclass
class Ledger:
    """The books of one conversation with one model. Mutable, without clock or I/O."""

    calibration: Calibration = field(default_factory=Calibration)
    prefix_tokens: int = 0
    prefix_features: float = 0.0
    summary_tokens: int = 0
    summary_measure: Measure | None = None
    pins_tokens: int = 0
    pins_features: float = 0.0
    prompt_tokens: int | None = None
    """The last reported prompt minus what was cut since; None before the first report."""
    learnt: dict[str, Calibration] = field(default_factory=dict)
    """What was learnt of each model that served; `calibration` is the one of the model that served last."""

    _served_model: str | None = None
    _fingerprint: str | None = None
    _intervals: Intervals = field(default_factory=Intervals)
    _tail: Tail = field(default_factory=Tail)
    _cut_since_record: bool = False
    _moved_since_record: bool = False
    """Whether a cut took more or less than whole measured intervals, or something else was put in place."""
    _thinking_items: int = 0
    _unsteady_items: int = 0
    _sent_prefix_features: float = 0.0
    _sent_pins_features: float = 0.0
    _lump_reviews_left: int = 0

    # -- what enters -------------------------------------------------------------------------------------

    def add(self, measure: Measure) -> None:
        """An item entered the history; its price is projected until a call that sends it is reported."""
        self._tail.add(measure, self.calibration)
        self._thinking_items += measure.thinking
        self._unsteady_items += measure.is_unsteady

    def count(self, seq: int, counted_tokens: int) -> None:
        """A tokenizer counted the text of an item that entered before; of one that was sent, the report says more."""
        self._tail.count(seq, counted_tokens, self.calibration)

    def describe_prefix(self, prefix_features: float, pins_features: float = 0.0) -> None:
        """Say what is sent beside the items: system prompt and tools, and the pinned texts.

        A change enters the next prompt's projection at once and the books with the next report.
        """
        self.prefix_features, self.pins_features = prefix_features, pins_features
        if self.prompt_tokens is None:
            self.prefix_tokens = self.calibration.project(prefix_features) if prefix_features else 0
            self.pins_tokens = self.calibration.project(pins_features) if pins_features else 0

    # -- what a provider reports -------------------------------------------------------------------------

    def record(self, usage: Usage, *, served_model: str, fingerprint: str, last_seq: int) -> Drift | None:
        """A kept main call that sent all items up to `last_seq` was reported.

        Returns the drift of our prediction, None for the first report (there was none to compare). What it costs
        depends on what is new since the last report, not on how long the history is.
        """
        tail_tokens, sent_now = self._tail.tokens, self._tail.take_until(last_seq)
        if self._tail.items:
            tail_tokens = sum(measure.project(self.calibration) for measure in sent_now)
        before, reported = self.prompt_tokens, usage.prompt_tokens
        same_model = served_model == self._served_model
        same_terms = before is not None and same_model and fingerprint == self._fingerprint
        drift = None
        doubtful = False
        if before is not None:
            predicted = before + sum(self._prefix_change()) + tail_tokens
            is_ours = self._cut_since_record or self._thinking_items > 0
            drift = drift_of(predicted, reported, before, may_be_truncated=same_terms and not is_ours)
            # Nothing is asked of an interval after an inexact cut: it will be no interval.
            doubtful = drift.rebased or (
                not self._moved_since_record and is_doubtful(drift.tokens, sent_now, self.calibration)
            )
        if not same_terms or doubtful:
            self._intervals.doubt_all()
        if not same_model and self.learnt:
            self.calibration = self.learnt.get(served_model, Calibration())
        grown = reported - (before or 0)
        units = sum([measure.features for measure in sent_now])
        if same_terms and sent_now and grown >= 0 and not self._moved_since_record:
            self._learn(grown, sent_now, units)
            is_exact = not doubtful and not self._cut_since_record and not self._unsteady_items
            self._intervals.append(sent_now, grown, "exact" if is_exact else "measured", units, self.calibration)
            self._share_lumps_again()
        else:
            self._book_prefix_change()
            if sent_now:
                self._intervals.append(sent_now, tail_tokens, "lump", units, self.calibration)
            if before is None or not same_model:
                self._learn_whole(reported)
            may_stay = same_model and (grown >= 0 or self._cut_since_record or not same_terms)
            self._rescale(reported, measured_may_stay=may_stay)
            self._lump_reviews_left = LUMP_REVIEWS
        self._reported(reported, served_model, fingerprint)
        return drift

    def anchor(self, model: str) -> Anchor | None:
        """What `resume` takes up again; None where no prompt was reported, or nothing says what was sent with it."""
        prefix, pins, items = self._sent_prefix_features, self._sent_pins_features, self._intervals.items
        if self.prompt_tokens is None or not isinstance(prefix, Units):
            return None
        return Anchor(
            prompt_tokens=self.prompt_tokens,
            last_seq=items[-1].seq if items else -1,
            prefix_counts=prefix.counts,
            pins_counts=pins.counts if isinstance(pins, Units) else (),
            model=model,
        )

    def resume(self, anchor: Anchor, served_model: str | None) -> None:
        """An earlier process saw this prompt reported: what was added up to its last item is one lump of it.

        What was sent beside the items is thought to be sent again, until somebody describes that anew.
        """
        if len(anchor.prefix_counts) != FEATURES:
            return  # of a version that weighed texts by other features
        self.describe_prefix(
            Units.from_counts(anchor.prefix_counts),
            Units.from_counts(anchor.pins_counts) if anchor.pins_counts else 0.0,
        )
        self._sent_prefix_features, self._sent_pins_features = self.prefix_features, self.pins_features
        sent = self._tail.take_until(anchor.last_seq)
        if sent:
            tokens = sum(measure.project(self.calibration) for measure in sent)
            self._intervals.append(sent, tokens, "lump", sum([m.features for m in sent]), self.calibration)
        self._rescale(anchor.prompt_tokens, measured_may_stay=True)
        self._lump_reviews_left = LUMP_REVIEWS
        self._tail.project(self.calibration)
        self.prompt_tokens, self._served_model = anchor.prompt_tokens, served_model
        self._cut_since_record = self._moved_since_record = False

    # -- what leaves -------------------------------------------------------------------------------------

    def price(self, first_seq: int, last_seq: int) -> Price:
        """What the items first_seq..last_seq take in the next prompt. Exact only for whole exact intervals."""
        return self._priced(first_seq, last_seq)[0]

    def item_prices(self) -> dict[int, int]:
        """What each item takes in the next prompt, by seq; the shares of an interval sum to it. One pass."""
        prices = self._intervals.item_prices(self.calibration)
        prices.update((measure.seq, measure.project(self.calibration)) for measure in self._tail.items)
        return prices

    def cut(self, first_seq: int, last_seq: int) -> Price:
        """The items first_seq..last_seq left the history. Returns what that frees, gross."""
        price, kind = self._priced(first_seq, last_seq)
        self._intervals.cut(first_seq, last_seq, self.calibration)
        self._tail.leave_out(first_seq, last_seq, self.calibration)
        self._count_unsteady()
        self._something_left(moved=kind == "lump")
        return price

    def replace_items(self, measures: Iterable[Measure]) -> Price:
        """Items were replaced by shorter ones with the same seq (stubs). Returns the tokens freed, projected.

        One pass over the history, however many there are.
        """
        new = {measure.seq: measure for measure in measures}
        before = self.item_prices()
        freed = {seq: max(0, before.get(seq, 0) - m.project(self.calibration)) for seq, m in new.items()}
        self._intervals.replace(new, freed, self.calibration)
        self._tail.replace(new, self.calibration)
        self._count_unsteady()
        self._something_left(moved=True)
        return Price(sum(freed.values()), "projected")

    def summarised(self, measure: Measure | None) -> int:
        """A summary took the place of what was cut (None: it was taken away). Returns its tokens."""
        self.summary_measure = measure
        self.summary_tokens = measure.project(self.calibration) if measure else 0
        self._something_left(moved=True)
        return self.summary_tokens

    def clear(self) -> None:
        """Everything was forgotten; what was learnt about the model stays."""
        self._intervals.clear()
        self._tail = Tail()
        self.summary_measure, self.summary_tokens = None, 0
        self.prompt_tokens = None
        self._count_unsteady()
        self.describe_prefix(self.prefix_features, self.pins_features)

    # -- what can be read --------------------------------------------------------------------------------

    @property
    def next_prompt_tokens(self) -> int:
        """What the next request will hold if nothing else arrives."""
        prefix, pins = self._prefix_change()
        # Once a prompt was reported, it is what the books sum to.
        books = self._books() if self.prompt_tokens is None else self.prompt_tokens
        return books + prefix + pins + self._tail.tokens

    @property
    def next_prompt_basis(self) -> TailBasis:
        """How that is known: what differs from a reported prompt was counted, or projected; or none was reported."""
        if self.prompt_tokens is None:
            return "heuristic"
        if self._tail.is_counted and not self._moved_since_record and not any(self._prefix_change()):
            return "tokenizer"
        return "projected"

    def unsent_price(self, seq: int) -> int:
        """What one item of the unsent tail will probably take; 0 when it is not in the tail."""
        return sum([measure.project(self.calibration) for measure in self._tail.between(seq, seq)])

    @property
    def parts(self) -> PromptParts:
        """The last reported prompt, split into what it holds, and the unsent tail beside it."""
        intervals = self._intervals
        return PromptParts(
            self.prefix_tokens,
            self.summary_tokens,
            self.pins_tokens,
            intervals.message_tokens,
            intervals.tool_tokens,
            self._tail.tokens,
            intervals.are_exact,
        )

    @property
    def unsent_tokens(self) -> int:
        """What the unsent tail will probably take."""
        return self._tail.tokens

    # -- inside: a report --------------------------------------------------------------------------------

    def _learn(self, grown: int, sent: Sequence[Measure], units: float) -> None:
        before = self.calibration
        text = grown - before.overhead_tokens * len(sent)
        self.calibration = before.observe(text, units)
        if [measure.counted_tokens for measure in sent].count(None) < len(sent):
            self._learn_overhead(grown, sent, before)

    def _learn_overhead(self, grown: int, sent: Sequence[Measure], before: Calibration) -> None:
        """Where all texts were counted or their size reported, what is beside them is the template's."""
        sizes = [m.counted_tokens if m.known_tokens is None else m.known_tokens for m in sent]
        sized = [tokens for tokens in sizes if tokens is not None]
        if len(sized) == len(sent):
            by_features = [
                before.project(m.features) if m.known_tokens is None else before.wrap(m.known_tokens) for m in sent
            ]
            self.calibration = self.calibration.observe_counted(grown, sum(sized), len(sent), sum(by_features))

    def _learn_whole(self, reported: int) -> None:
        """A first prompt is all there is to learn a new model's factor from."""
        units = self.prefix_features + self.pins_features + self._intervals.units
        text = reported - self.calibration.overhead_tokens * (len(self._intervals.items) + 1)
        self.calibration = self.calibration.observe(text, units, noise=WHOLE_PROMPT_NOISE)

    def _reported(self, reported: int, served_model: str, fingerprint: str) -> None:
        self._tail.project(self.calibration)
        self.prompt_tokens = reported
        self._served_model, self._fingerprint = served_model, fingerprint
        self._sent_prefix_features, self._sent_pins_features = self.prefix_features, self.pins_features
        self.learnt[served_model] = self.calibration
        self._cut_since_record = self._moved_since_record = False

    # -- inside: the books -------------------------------------------------------------------------------

    def _books(self) -> int:
        items = self._intervals.message_tokens + self._intervals.tool_tokens
        return self.prefix_tokens + self.summary_tokens + self.pins_tokens + items

    def _prefix_change(self) -> tuple[int, int]:
        """Tokens by which what is sent beside the items differs from what the last reported call sent with them."""
        if self.prompt_tokens is None:
            return 0, 0
        if self.prefix_features is self._sent_prefix_features and self.pins_features is self._sent_pins_features:
            # Nothing was described anew since the last report: asked several times a call, so worth the short way.
            return 0, 0
        prefix = round(self.calibration.tokens(self.prefix_features - self._sent_prefix_features))
        pins = round(self.calibration.tokens(self.pins_features - self._sent_pins_features))
        return max(-self.prefix_tokens, prefix), max(-self.pins_tokens, pins)

    def _book_prefix_change(self) -> None:
        prefix, pins = self._prefix_change()
        self.prefix_tokens += prefix
        self.pins_tokens += pins

    def _priced(self, first_seq: int, last_seq: int) -> tuple[Price, Kind | None]:
        """The price, and the weakest way in which what was sent of it is known."""
        tokens, kind = self._intervals.price(first_seq, last_seq, self.calibration)
        unsent = self._tail.between(first_seq, last_seq)
        tokens += sum(measure.project(self.calibration) for measure in unsent)
        exact = kind == "exact" and not unsent and not self._unsteady_items
        return Price(tokens, "exact" if exact and tokens else "projected"), kind

    def _share_lumps_again(self) -> None:
        """What was reported in one lump (a first prompt, one after a cut) is shared anew as the model gets known.

        The lump's sum is reported and stays; the first few intervals teach most of how it divides.
        """
        if not self._lump_reviews_left:
            return
        self._lump_reviews_left -= 1
        lumps = self._intervals.lumps
        wanted = [
            self.calibration.project(self.prefix_features) if self.prefix_features else 0,
            self.summary_measure.project(self.calibration) if self.summary_measure else 0,
            self.calibration.project(self.pins_features) if self.pins_features else 0,
            self._intervals.project_lumps(self.calibration),
        ]
        whole = self.prefix_tokens + self.summary_tokens + self.pins_tokens + lumps.tokens
        self.prefix_tokens, self.summary_tokens, self.pins_tokens, tokens = fit(whole, wanted)
        tool_tokens = lumps.tool_tokens * tokens // lumps.tokens if lumps.tokens else 0
        self._intervals.resize_lumps(tokens - tool_tokens, tool_tokens)

    def _rescale(self, reported: int, *, measured_may_stay: bool) -> None:
        """Make the parts sum to a reported prompt by moving those that are known least.

        Measured intervals stay as they are where nothing but what is around them moved and that has room left; exact
        ones are exact no more where it has less than half of what it is thought to take.
        """
        intervals = self._intervals
        lumps, measured = intervals.lumps, intervals.measured
        loose = [
            self.prefix_tokens,
            self.summary_tokens,
            self.pins_tokens,
            lumps.message_tokens,
            lumps.tool_tokens,
        ]
        left = reported - intervals.exact.tokens - measured.tokens
        if left * 2 < sum(loose):
            intervals.doubt_all()
        if left < 0 or not measured_may_stay:
            left += measured.tokens
            loose += [measured.message_tokens, measured.tool_tokens]
        fitted = apportion(max(0, left), loose)
        self.prefix_tokens, self.summary_tokens, self.pins_tokens = fitted[:3]
        intervals.resize_lumps(*fitted[3:5])
        if len(fitted) > 5:
            intervals.resize_measured(*fitted[5:])

    def _something_left(self, *, moved: bool) -> None:
        if self.prompt_tokens is not None:
            self.prompt_tokens = self._books()
        self._cut_since_record = True
        self._moved_since_record = self._moved_since_record or moved

    def _count_unsteady(self) -> None:
        measures = (*self._intervals.items, *self._tail.items)
        self._thinking_items = sum(measure.thinking for measure in measures)
        self._unsteady_items = sum(measure.is_unsteady for measure in measures)
