"""[pure] Tokens of each part of a conversation: exact for whole intervals, labelled otherwise.

The accounts are a fold over facts: `fold(facts)`, one fact after another. Two reported prompts differ by exactly the
items that entered between the two calls, so a cut at call boundaries has an exact price. Everything else is projected
from features and scaled so that the parts of a reported figure sum to it. Owns these prices, the prediction of the next
prompt, and its drift. Does not know texts, policies or thresholds. How it works: docs/explanation/estimator.md.

Invariant:  prefix + summary + pins + all intervals  =  the last reported prompt, minus later cuts
After them come the unsent items: the kept reply and whatever entered since.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from mew_protocol.context_report import NextPromptBasis

from mew_agent.context.facts import (
    Appended,
    Cleared,
    ContextFact,
    Cut,
    CutCounted,
    Described,
    Facts,
    Learnt,
    PrefixCounted,
    PromptCounted,
    PutBack,
    Replaced,
    Reported,
    Resumed,
    Summarised,
)
from mew_agent.context.intervals import Intervals, Items
from mew_agent.context.item_sizes import MOST_TEMPLATE_TOKENS, ItemSize, most_of_text
from mew_agent.context.persisted_state import PromptAnchor
from mew_agent.context.preamble import NO_GROWTH, FixedTexts, FixedTokens, Preamble
from mew_agent.context.reconciliation import (
    Comparison,
    Evidence,
    Removal,
    Terms,
    drift_of,
    learn_from_interval,
)
from mew_agent.tokens.projection import WHOLE_PROMPT_NOISE, Calibration, Units

PriceBasis = Literal["exact", "tokenizer", "projected"]


@dataclass(frozen=True, slots=True)
class Price:
    """Tokens of some items, and how they are known."""

    tokens: int
    basis: PriceBasis
    has_lump: bool = False  # whether a part of it was never measured


class PromptParts(NamedTuple):
    """The last reported prompt in tokens, divided into parts; `unsent` comes in addition."""

    prefix: int
    summary: int
    pins: int
    messages: int
    tool_results: int
    unsent: int
    items_exact: bool  # messages and tool results together are exact


@dataclass
class Ledger:
    """The accounts of one conversation. Changed by `apply` only; no clock, no I/O."""

    calibration: Calibration = field(default_factory=Calibration)  # calibration of the model that answered last
    preamble: Preamble = field(default_factory=Preamble)
    items: Items = field(default_factory=Items)
    intervals: Intervals = field(default_factory=Intervals)
    prompt_tokens: int | None = None  # the last reported prompt minus later cuts; None before the first report
    evidence: Evidence = field(default_factory=Evidence)
    projected_tokens: int = 0  # projected size of the next request if nothing else is added
    counted_tokens: int | None = None  # the same size, counted by a server; None after a change of the request

    _steps: ClassVar[dict[type, Callable[["Ledger", Any], None]]]

    def apply(self, fact: ContextFact) -> None:
        """Update the accounts, and the size of the next request, with a fact."""
        self.counted_tokens = None
        self._steps[type(fact)](self, fact)
        # After a report the parts sum to the prompt, so do not add them up. The texts rarely change.
        booked = self._booked_tokens if self.prompt_tokens is None else self.prompt_tokens
        growth = 0 if self.preamble.texts is self.preamble.sent else sum(self._prefix_growth)
        self.projected_tokens = booked + growth + self.items.unsent_tokens

    # -- what enters -------------------------------------------------------------------------------------

    def _append(self, fact: Appended) -> None:
        self.items.add(fact.size, self.calibration)
        self.evidence.has_counts |= fact.size.counted_tokens is not None

    def _describe(self, fact: Described) -> None:
        self.preamble.describe(fact.texts)
        if self.prompt_tokens is None:
            self.preamble.tokens = self.preamble.project(self.calibration)

    def _count_prefix(self, fact: PrefixCounted) -> None:
        self.preamble.counted_growth = fact.growth_tokens

    def _count_prompt(self, fact: PromptCounted) -> None:
        self.counted_tokens = fact.tokens

    # -- reports -----------------------------------------------------------------------------------------

    def _report(self, fact: Reported) -> None:
        seen, calibration = self._compared(fact), self.calibration
        is_doubtful = seen.is_in_doubt(calibration)
        self.evidence.observe(seen, fact.terms, calibration, thinking=self.items.thinking, unsteady=self.items.unsteady)
        # A prompt that grows cannot be smaller: something was removed.
        if is_doubtful or not seen.is_comparable or seen.has_fallen:
            self.intervals.doubt_all()
        learnt = self.evidence.learnt
        if not seen.same_model and learnt:  # models have different tokenizers
            self.calibration = learnt.get(fact.terms.model, Calibration())
        if seen.is_interval:
            self._book_interval(seen, is_doubtful=is_doubtful or not seen.is_comparable)
        else:
            self._book_whole(seen)
        if self.items.unsent:
            self.items.project(self.calibration)
        self.preamble.sent = self.preamble.texts
        learnt[fact.terms.model] = self.calibration
        self.prompt_tokens = fact.prompt_tokens
        self.evidence.terms, self.evidence.removal = fact.terms, Removal.NOTHING

    def _compared(self, fact: Reported) -> Comparison:
        """Compare a report with the last one and with its prediction."""
        reported, terms, last_seq = fact.prompt_tokens, fact.terms, fact.last_seq
        before, last = self.prompt_tokens, self.evidence.terms
        fixed_tokens = self.projected_tokens - self.items.unsent_tokens
        sent, projected, units = self.items.send(last_seq, self.calibration)
        drift = None if before is None else drift_of(fixed_tokens + projected, reported)
        is_comparable = before is not None and terms == last
        # By position: this runs after every call, and ten keywords take twice the time.
        return Comparison(
            reported,
            reported - (before or 0),
            sent,
            projected,
            units,
            drift,
            is_comparable,
            is_comparable or terms.model == last.model,
            is_comparable or terms.fingerprint == last.fingerprint,
            self.evidence.removal,
            last_seq,
        )

    def _book_interval(self, seen: Comparison, *, is_doubtful: bool) -> None:
        """Record the prompt's growth as the price of the sent items."""
        learnt = learn_from_interval(self.calibration, seen.grown_tokens, seen.sent, seen.units)
        self.calibration = learnt
        may_return = self.items.sizes[0].seq <= self.evidence.fallen_until
        is_measured = is_doubtful or may_return or seen.removal is not Removal.NOTHING or self.items.unsteady > 0
        kind: Literal["exact", "measured"] = "exact"
        if is_measured or not self.evidence.is_backend_steady:
            kind = "measured"
        self.intervals.append(seen.sent, seen.grown_tokens, kind, seen.units, learnt)
        if self.preamble.reviews_left:
            self.preamble.review(self.intervals, learnt)

    def _book_whole(self, seen: Comparison) -> None:
        """Record the sent items as a lump, and divide the whole prompt among its parts."""
        self._book_lump(seen.sent, seen.projected_tokens, seen.units)
        if seen.drift is None or not seen.same_model:
            # The first prompt of a model is all there is to learn its factor from. Its system prompt is a message, too.
            units = sum(self.preamble.texts, self.intervals.units)
            count = self.items.sent_count + 1
            text_tokens = seen.reported - self.calibration.overhead_tokens * count
            self.calibration = self.calibration.observe(text_tokens, units, noise=WHOLE_PROMPT_NOISE)
        self.preamble.is_held = seen.is_comparable
        self.preamble.rescale(self.intervals, seen.reported, self.calibration, measured_may_stay=seen.explains_size)

    def _book_lump(self, sent: Sequence[ItemSize], projected: int, units: float) -> None:
        if self.prompt_tokens is not None:
            self.preamble.grow(self.calibration)
        if sent:
            self.intervals.append(sent, projected, "lump", units, self.calibration)

    # -- restarts ----------------------------------------------------------------------------------------

    def _learn(self, fact: Learnt) -> None:
        self.evidence.learnt = dict(fact.calibrations)
        self.calibration = fact.calibrations.get(fact.served_model or "", self.calibration)

    def _resume(self, fact: Resumed) -> None:
        """Continue from a prompt that an earlier process recorded: as one lump."""
        anchor = fact.anchor
        pins = Units.from_counts(anchor.pins_counts) if anchor.pins_counts else 0.0
        self._describe(Described(FixedTexts(Units.from_counts(anchor.prefix_counts), pins)))
        self.preamble.sent = self.preamble.texts
        self._book_lump(*self.items.send(anchor.last_seq, self.calibration))
        self.preamble.rescale(self.intervals, anchor.prompt_tokens, self.calibration, measured_may_stay=True)
        self.items.project(self.calibration)
        self.prompt_tokens, self.evidence.terms = anchor.prompt_tokens, Terms(fact.served_model or "", None, None)
        self.evidence.removal = Removal.NOTHING

    def anchor(self, model: str) -> PromptAnchor | None:
        """Return the last reported prompt, for `Resumed`; None without a report or without features of its prefix."""
        prefix, pins = self.preamble.sent
        if self.prompt_tokens is None or not isinstance(prefix, Units):
            return None
        return PromptAnchor(
            prompt_tokens=self.prompt_tokens,
            last_seq=self.items.sent_until,
            prefix_counts=prefix.counts,
            pins_counts=pins.counts if isinstance(pins, Units) else (),
            model=model,
        )

    # -- what leaves and returns -------------------------------------------------------------------------

    def _cut(self, fact: Cut) -> None:
        first, last = fact.first_seq, fact.last_seq
        # A measured interval leaves with its own figure, a lump with an estimate, which makes the next difference less
        # exact.
        _, kind = self.intervals.price(self.items.sent, first, last, self.calibration)
        removal = Removal.OTHERS if kind == "lump" else Removal.INTERVALS
        self.intervals.cut(self.items.sent, first, last, self.calibration)
        left = [size for size in self.items.sizes if not first <= size.seq <= last]
        self._set_items(left, self.items.sent_until, removal)

    def _replace(self, fact: Replaced) -> None:
        new = {size.seq: size for size in fact.sizes}
        self._exchange(new, self._savings(new))

    def _exchange(self, new: Mapping[int, ItemSize], freed: Mapping[int, int]) -> None:
        self.intervals.replace(self.items.sent, new, freed, self.calibration)
        replaced = [new.get(size.seq, size) for size in self.items.sizes]
        self._set_items(replaced, self.items.sent_until, Removal.OTHERS)

    def _put_back(self, fact: PutBack) -> None:
        if fact.replaced:
            # A stub saved its old price minus its own projection, so add this amount again.
            new = {size.seq: size for size in fact.replaced}
            had = {seq: fact.prices.get(seq, size.project(self.calibration)) for seq, size in new.items()}
            self._exchange(new, {seq: min(0, self.projection(seq) - tokens) for seq, tokens in had.items()})
        sent_until = -1 if self.prompt_tokens is None else max(fact.sent_until, self.items.sent_until)
        sent = [size for size in fact.returned if size.seq <= sent_until]
        if sent:
            self.intervals.put_back(self.items.sent, sent, fact.prices, self.calibration)
        self._set_items([*self.items.sizes, *fact.returned], sent_until, Removal.OTHERS)

    def _summarise(self, fact: Summarised) -> None:
        self.preamble.set_summary(fact.size, fact.tokens, self.calibration)
        self._note(Removal.OTHERS)

    def _correct(self, fact: CutCounted) -> None:
        whole = max(0, self._booked_tokens - fact.excess_tokens)
        self.preamble.set_summary_size(fact.summary_tokens, self.calibration)
        self.preamble.rescale(self.intervals, whole, self.calibration, measured_may_stay=True)
        self._note(Removal.OTHERS)

    def _clear(self, _: Cleared) -> None:
        """Start over. Calibrations stay."""
        self.items, self.intervals = Items(), Intervals()
        self.preamble.set_summary(None, None, self.calibration)
        self.prompt_tokens, self.evidence.fallen_until = None, -1
        self.evidence.backends.clear()
        # Without a reported prompt the prefix is projected again.
        self._describe(Described(self.preamble.texts))
        self._note(Removal.OTHERS)

    def _set_items(self, sizes: Sequence[ItemSize], sent_until: int, removal: Removal) -> None:
        self.items.set(sizes, sent_until, self.calibration)
        self._note(removal)

    def _note(self, removal: Removal) -> None:
        if self.prompt_tokens is not None:
            self.prompt_tokens = self._booked_tokens
        self.evidence.removal = max(self.evidence.removal, removal)

    # -- reading -----------------------------------------------------------------------------------------

    def price(self, first_seq: int, last_seq: int) -> Price:
        """Return the price of the items first_seq..last_seq in the next prompt. It is exact for whole exact
        intervals.
        """
        tokens, kind = self.intervals.price(self.items.sent, first_seq, last_seq, self.calibration)
        unsent = self.items.unsent_between(first_seq, last_seq)
        tokens += sum(size.project(self.calibration) for size in unsent)
        if kind == "exact" and not unsent and not self.items.unsteady and tokens:
            return Price(tokens, "exact")
        basis: PriceBasis = "tokenizer" if self._is_counted(first_seq, last_seq) else "projected"
        return Price(tokens, basis, has_lump=kind == "lump")

    def item_prices(self) -> dict[int, int]:
        """Return each item's tokens in the next prompt by seq. The items of an interval sum to its price."""
        prices = self.intervals.item_prices(self.items.sent, self.calibration)
        prices.update((size.seq, size.project(self.calibration)) for size in self.items.unsent)
        return prices

    def most_tokens(self) -> tuple[int, dict[int, int]]:
        """Return upper bounds computed from texts alone: for prefix and pins together, and for each item by seq."""
        fixed = most_of_text(sum(self.preamble.texts)) + MOST_TEMPLATE_TOKENS
        return fixed, {size.seq: size.most_tokens(self.calibration) for size in self.items.sizes}

    def saving(self, stubs: Sequence[ItemSize]) -> Price:
        """Return the tokens that replacing items by these stubs (of the same seq) would free."""
        new = {size.seq: size for size in stubs}
        is_counted = all(self._is_counted(seq, seq) and m.is_counted(self.calibration) for seq, m in new.items())
        return Price(sum(self._savings(new).values()), "tokenizer" if is_counted else "projected")

    @property
    def next_prompt_tokens(self) -> int:
        """Size of the next request if nothing else is added."""
        return self.projected_tokens if self.counted_tokens is None else self.counted_tokens

    @property
    def next_prompt_basis(self) -> NextPromptBasis:
        """Basis of `next_prompt_tokens`: `heuristic` before the first report, then the weakest basis of the changes
        since.
        """
        if self.counted_tokens is not None:
            return "server_counted"
        if self.prompt_tokens is None:
            return "heuristic"
        if self.evidence.removal is Removal.OTHERS or not self.items.is_unsent_counted:
            return "projected"
        return "projected" if any(self._prefix_growth) else "tokenizer"

    @property
    def prefix_growth_tokens(self) -> int:
        """The growth of the prefix in tokens since the last reported call."""
        return self._prefix_growth.prefix

    @property
    def is_summary_counted(self) -> bool:
        """Whether the summary's tokens are a proven tokenizer's count."""
        is_proven = not self.evidence.has_moved_backend and self.evidence.count_proof.is_proven()
        return is_proven and self.preamble.is_summary_counted(self.calibration)

    def agrees_with_count(self, counted_tokens: int) -> bool:
        """Return whether a server's count of the next prompt agrees with its reports."""
        if self.prompt_tokens is None:
            return True
        return not drift_of(self.projected_tokens, counted_tokens, self.items.unsent_tokens).rebased

    def projection(self, seq: int) -> int:
        """Project the tokens of one item from its size alone; 0 if there is no such item."""
        sizes = self.items.sizes
        at = bisect_left(sizes, seq, key=lambda size: size.seq)
        is_there = at < len(sizes) and sizes[at].seq == seq
        return sizes[at].project(self.calibration) if is_there else 0

    @property
    def parts(self) -> PromptParts:
        """The last reported prompt in parts, and the unsent items."""
        preamble, intervals = self.preamble, self.intervals
        return PromptParts(
            preamble.tokens.prefix,
            preamble.summary_tokens,
            preamble.tokens.pins,
            *intervals.tokens,
            self.items.unsent_tokens,
            intervals.are_exact,
        )

    @property
    def _booked_tokens(self) -> int:
        return self.preamble.total_tokens + sum(self.intervals.tokens)

    @property
    def _prefix_growth(self) -> FixedTokens:
        return NO_GROWTH if self.prompt_tokens is None else self.preamble.growth(self.calibration)

    def _savings(self, new: Mapping[int, ItemSize]) -> dict[int, int]:
        """Return, by seq, the tokens freed by replacing items with these."""
        before = self.item_prices()
        return {seq: max(0, before.get(seq, 0) - m.project(self.calibration)) for seq, m in new.items()}

    def _is_counted(self, first_seq: int, last_seq: int) -> bool:
        """Return whether a proven tokenizer counted all of these items."""
        if self.evidence.has_moved_backend or self.items.thinking:
            return False
        if not self.evidence.count_proof.is_proven(has_calls=self.items.unsteady > 0):
            return False
        if not all(size.is_counted(self.calibration) for size in self.items.unsent_between(first_seq, last_seq)):
            return False
        return self.intervals.are_counted(self.items.sent, first_seq, last_seq, self.calibration)


Ledger._steps = {
    Appended: Ledger._append,
    Described: Ledger._describe,
    PrefixCounted: Ledger._count_prefix,
    PromptCounted: Ledger._count_prompt,
    Reported: Ledger._report,
    Cut: Ledger._cut,
    Replaced: Ledger._replace,
    Summarised: Ledger._summarise,
    CutCounted: Ledger._correct,
    PutBack: Ledger._put_back,
    Cleared: Ledger._clear,
    Learnt: Ledger._learn,
    Resumed: Ledger._resume,
}


def fold(facts: Facts, ledger: Ledger | None = None) -> Ledger:
    """Fold facts, oldest first, into a ledger: a new one unless given."""
    ledger = Ledger() if ledger is None else ledger
    for fact in facts:
        ledger.apply(fact)
    return ledger
