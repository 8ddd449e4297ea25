"""[pure] What each stretch of a conversation costs in tokens: exact for whole intervals, labelled otherwise.

Two reported prompts differ by exactly the items that entered between the two calls, so a cut that begins and
ends at call bounds has an exact price. Everything else is projected: feature counts times the model's factor k,
scaled so that the parts of a reported figure sum to it. Owned here: those prices, the prediction of the next
prompt, and its drift from what the provider then reported. Not known here: texts, policies, thresholds.

The books, at any moment:  prefix + summary + pins + all spans  =  the last reported prompt (minus later cuts)
and behind them the unsent tail: the kept reply and whatever entered since.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from mew_agent.context.projection import MESSAGE_OVERHEAD_TOKENS, WHOLE_PROMPT_NOISE, Calibration
from mew_agent.context.shares import apportion, fit
from mew_agent.context.usage import Usage

PriceBasis = Literal["exact", "projected"]

DRIFT_TOLERANCE_TOKENS = 64
DOUBT_TOKENS = 16
DOUBT_TOKENS_PER_ITEM = 4
DOUBT_SHARE = (1, 4)
"""An interval whose growth is further from its projection than all of these is not trusted to be the items alone:
a server that drops old messages shows only in the totals. The share is of what had to be projected in it."""

LUMP_REVIEWS = 8
"""After how many further intervals a lump is no longer shared anew."""

TRUNCATION_FALL = (4, 5)
"""A prompt below 4/5 of the previous one, with nothing cut, was shortened by the server."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What the ledger knows of one history item. `seq` grows through the history.

    `known_tokens` is the reported size of a text a model wrote (a kept reply, a summary), without the template's
    overhead. `thinking` marks a reply whose thinking may be sent again or stripped, `tool_calls` one that asked for
    tools: templates write either another way once it is old, which moves prompts that it is long part of.
    """

    seq: int
    features: float
    known_tokens: int | None = None
    tool_result: bool = False
    thinking: bool = False
    tool_calls: bool = False

    @property
    def is_unsteady(self) -> bool:
        """Whether a template may give it another price later."""
        return self.thinking or self.tool_calls

    def project(self, calibration: Calibration) -> int:
        """Tokens this item will probably take in a prompt, template overhead included."""
        if self.known_tokens is not None:
            return self.known_tokens + MESSAGE_OVERHEAD_TOKENS
        return calibration.project(self.features)


@dataclass(frozen=True, slots=True)
class Price:
    """Tokens of some items and how that is known."""

    tokens: int
    basis: PriceBasis


@dataclass(frozen=True, slots=True)
class Drift:
    """What a call taught: predicted minus reported prompt tokens, and what follows from it."""

    tokens: int
    rebased: bool
    truncated_by_server: bool


class Parts(NamedTuple):
    """The last reported prompt, split. All tokens; they sum to it. `exact` says which parts are exact."""

    prefix: int
    summary: int
    pins: int
    messages: int
    tool_results: int
    unsent: int
    items_exact: bool


@dataclass(frozen=True, slots=True)
class _Span:
    """Items first_seq..last_seq cost `tokens` together, `tool_tokens` of them in tool results.

    `measured` says that `tokens` is the difference of two reports, `exact` that nothing gives reason to doubt it.
    """

    first_seq: int
    last_seq: int
    tokens: int
    tool_tokens: int
    exact: bool
    measured: bool = False


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
    _spans: deque[_Span] = field(default_factory=deque)
    _sent: deque[Measure] = field(default_factory=deque)
    _unsent: list[Measure] = field(default_factory=list)
    _unsent_tokens: int = 0
    _messages_tokens: int = 0
    _tool_tokens: int = 0
    _inexact_spans: int = 0
    _cut_since_record: bool = False
    _thinking_items: int = 0
    _unsteady_items: int = 0
    _sent_prefix_features: float = 0.0
    _sent_pins_features: float = 0.0
    _lump_reviews_left: int = 0

    # -- what enters -------------------------------------------------------------------------------------

    def add(self, measure: Measure) -> None:
        """An item entered the history; its price is projected until a call that sends it is reported."""
        self._unsent.append(measure)
        self._unsent_tokens += measure.project(self.calibration)
        self._thinking_items += measure.thinking
        self._unsteady_items += measure.is_unsteady

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

        Returns the drift of our prediction, None for the first report (there was none to compare).
        """
        sent_now = [m for m in self._unsent if m.seq <= last_seq]
        projected = sum(m.project(self.calibration) for m in sent_now)
        predicted = self._books() + sum(self._prefix_change()) + projected
        reported, first = usage.prompt_tokens, self.prompt_tokens is None
        same_model = served_model == self._served_model
        same_terms = not first and same_model and fingerprint == self._fingerprint
        drift = None if first else self._drift(predicted, reported, same_terms)
        doubtful = drift is not None and (drift.rebased or self._is_doubtful(drift.tokens, sent_now))
        if not same_terms or doubtful:
            self._doubt_all()
        exact = drift is not None and not doubtful
        if not same_model and self.learnt:
            self.calibration = self.learnt.get(served_model, Calibration())

        grown = reported - (self.prompt_tokens or 0)
        if same_terms and not self._cut_since_record and grown >= 0 and sent_now:
            self._learn(grown, sent_now)
            self._append_span(sent_now, grown, exact=exact, measured=True)
            self._share_lump_again()
        else:
            self._book_prefix_change()
            if sent_now:
                self._append_span(sent_now, projected, exact=False)
            if first or not same_model:
                self._learn_whole(reported)
            self._rescale(reported)
            self._lump_reviews_left = LUMP_REVIEWS
        self._unsent = [m for m in self._unsent if m.seq > last_seq]
        self._unsent_tokens = sum(m.project(self.calibration) for m in self._unsent)
        self.prompt_tokens = reported
        self._served_model, self._fingerprint = served_model, fingerprint
        self._sent_prefix_features, self._sent_pins_features = self.prefix_features, self.pins_features
        self.learnt[served_model] = self.calibration
        self._cut_since_record = False
        return drift

    # -- what leaves -------------------------------------------------------------------------------------

    def price(self, first_seq: int, last_seq: int) -> Price:
        """What the items first_seq..last_seq take in the next prompt. Exact only for whole exact intervals."""
        tokens, exact = 0, True
        for span in self._spans:
            if span.last_seq < first_seq or span.first_seq > last_seq:
                continue
            if first_seq <= span.first_seq and span.last_seq <= last_seq:
                tokens += span.tokens
                exact = exact and span.exact
            else:
                shares = self._shares(span)
                tokens += sum(tokens_ for seq, tokens_, _ in shares if first_seq <= seq <= last_seq)
                exact = False
        for measure in self._unsent:
            if first_seq <= measure.seq <= last_seq:
                tokens += measure.project(self.calibration)
                exact = False
        exact = exact and not self._unsteady_items
        return Price(tokens, "exact" if exact and tokens else "projected")

    def item_prices(self) -> dict[int, int]:
        """What each item takes in the next prompt, by seq; the shares of an interval sum to it. One pass."""
        prices: dict[int, int] = {}
        sent = deque(self._sent)
        for span in self._spans:
            inside: list[Measure] = []
            while sent and sent[0].seq <= span.last_seq:
                inside.append(sent.popleft())
            prices.update((seq, tokens) for seq, tokens, _ in _split(span.tokens, inside, self.calibration))
        prices.update((m.seq, m.project(self.calibration)) for m in self._unsent)
        return prices

    def cut(self, first_seq: int, last_seq: int) -> Price:
        """The items first_seq..last_seq left the history. Returns what that frees, gross."""
        price = self.price(first_seq, last_seq)
        kept: deque[_Span] = deque()
        for span in self._spans:
            if span.last_seq < first_seq or span.first_seq > last_seq:
                kept.append(span)
            elif not (first_seq <= span.first_seq and span.last_seq <= last_seq):
                kept.extend(self._remains(span, first_seq, last_seq))
        self._spans = kept
        self._sent = deque(m for m in self._sent if not first_seq <= m.seq <= last_seq)
        self._unsent = [m for m in self._unsent if not first_seq <= m.seq <= last_seq]
        self._recount()
        if self.prompt_tokens is not None:
            self.prompt_tokens = self._books()
        self._cut_since_record = True
        return price

    def replace_items(self, measures: Iterable[Measure]) -> Price:
        """Items were replaced by shorter ones with the same seq (stubs). Returns the tokens freed, projected.

        One pass over the history, however many there are.
        """
        new = {m.seq: m for m in measures}
        before = self.item_prices()
        freed = {seq: max(0, before.get(seq, 0) - m.project(self.calibration)) for seq, m in new.items()}
        waiting = deque(sorted(new))
        spans: deque[_Span] = deque()
        for span in self._spans:
            inside: list[int] = []
            while waiting and waiting[0] <= span.last_seq:
                inside.append(waiting.popleft())
            gone = sum(freed[seq] for seq in inside)
            tool_gone = sum(freed[seq] for seq in inside if new[seq].tool_result)
            left = replace(span, tokens=span.tokens - gone, tool_tokens=max(0, span.tool_tokens - tool_gone))
            spans.append(replace(left, exact=False) if inside else span)
        self._spans = spans
        self._sent = deque(new.get(m.seq, m) for m in self._sent)
        self._unsent = [new.get(m.seq, m) for m in self._unsent]
        self._recount()
        if self.prompt_tokens is not None:
            self.prompt_tokens = self._books()
        self._cut_since_record = True
        return Price(sum(freed.values()), "projected")

    def summarised(self, measure: Measure | None) -> int:
        """A summary took the place of what was cut (None: it was taken away). Returns its tokens."""
        self.summary_measure = measure
        self.summary_tokens = measure.project(self.calibration) if measure else 0
        if self.prompt_tokens is not None:
            self.prompt_tokens = self._books()
        self._cut_since_record = True
        return self.summary_tokens

    def clear(self) -> None:
        """Everything was forgotten; what was learnt about the model stays."""
        self._spans.clear()
        self._sent.clear()
        self._unsent.clear()
        self.summary_measure, self.summary_tokens = None, 0
        self.prompt_tokens = None
        self._recount()
        self.describe_prefix(self.prefix_features, self.pins_features)

    # -- what can be read --------------------------------------------------------------------------------

    @property
    def next_prompt_tokens(self) -> int:
        """What the next request will hold if nothing else arrives."""
        return self._books() + sum(self._prefix_change()) + self._unsent_tokens

    @property
    def unsent_items(self) -> int:
        """How many items entered since the last reported call, its reply included."""
        return len(self._unsent)

    @property
    def last_sent_seq(self) -> int:
        """The newest item that a reported call sent and that is still there; -1 when there is none."""
        return self._sent[-1].seq if self._sent else -1

    def unsent_price(self, seq: int) -> int:
        """What one item of the unsent tail will probably take; 0 when it is not in the tail."""
        return sum(m.project(self.calibration) for m in self._unsent if m.seq == seq)

    @property
    def parts(self) -> Parts:
        """The last reported prompt, split into what it holds, and the unsent tail beside it."""
        return Parts(
            prefix=self.prefix_tokens,
            summary=self.summary_tokens,
            pins=self.pins_tokens,
            messages=self._messages_tokens,
            tool_results=self._tool_tokens,
            unsent=self._unsent_tokens,
            items_exact=bool(self._spans) and self._inexact_spans == 0,
        )

    # -- inside ------------------------------------------------------------------------------------------

    def _books(self) -> int:
        return self.prefix_tokens + self.summary_tokens + self.pins_tokens + self._messages_tokens + self._tool_tokens

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

    def _is_doubtful(self, drift_tokens: int, sent_now: Sequence[Measure]) -> bool:
        """Whether an interval's growth may hold more than its items; nothing is asked of it after a cut."""
        if self._cut_since_record:
            return False
        off = abs(drift_tokens)
        if off <= max(DOUBT_TOKENS, DOUBT_TOKENS_PER_ITEM * len(sent_now)):
            return False
        part, whole = DOUBT_SHARE
        return off > sum(m.project(self.calibration) for m in sent_now if m.known_tokens is None) * part // whole

    def _drift(self, predicted: int, reported: int, same_terms: bool) -> Drift:
        tokens = predicted - reported
        bound = max(DRIFT_TOLERANCE_TOKENS, reported * 2 // 100)
        keep, whole = TRUNCATION_FALL
        fell = reported * whole < (self.prompt_tokens or 0) * keep
        truncated = fell and same_terms and not self._cut_since_record and not self._thinking_items
        return Drift(tokens, rebased=abs(tokens) > bound, truncated_by_server=truncated)

    def _learn(self, grown: int, sent: Sequence[Measure]) -> None:
        text = grown - MESSAGE_OVERHEAD_TOKENS * len(sent)
        self.calibration = self.calibration.observe(text, sum(m.features for m in sent))

    def _learn_whole(self, reported: int) -> None:
        """A first prompt is all there is to learn a new model's factor from."""
        items = [*self._sent]
        units = self.prefix_features + self.pins_features + sum(m.features for m in items)
        text = reported - MESSAGE_OVERHEAD_TOKENS * (len(items) + 1)
        self.calibration = self.calibration.observe(text, units, noise=WHOLE_PROMPT_NOISE)

    def _append_span(self, measures: Sequence[Measure], tokens: int, *, exact: bool, measured: bool = False) -> None:
        tool_tokens = 0
        if any(measure.tool_result for measure in measures):
            tool_tokens = sum(share for (_, share, tool) in _split(tokens, measures, self.calibration) if tool)
        exact = exact and not self._unsteady_items
        self._spans.append(_Span(measures[0].seq, measures[-1].seq, tokens, tool_tokens, exact, measured))
        self._sent.extend(measures)
        self._messages_tokens += tokens - tool_tokens
        self._tool_tokens += tool_tokens
        self._inexact_spans += not exact

    def _doubt_all(self) -> None:
        """Something moved that additive templates do not move: keep the amounts, drop the word exact."""
        if self._inexact_spans == len(self._spans):
            return
        self._spans = deque(replace(span, exact=False) for span in self._spans)
        self._inexact_spans = len(self._spans)

    def _share_lump_again(self) -> None:
        """What was reported in one lump (a first prompt, one after a cut) is shared anew as the model gets known.

        The lump's sum is reported and stays; the first few intervals teach most of how it divides.
        """
        if not self._lump_reviews_left:
            return
        self._lump_reviews_left -= 1
        lumps = [at for at, span in enumerate(self._spans) if not span.measured]
        wanted = [
            self.calibration.project(self.prefix_features) if self.prefix_features else 0,
            self.summary_measure.project(self.calibration) if self.summary_measure else 0,
            self.calibration.project(self.pins_features) if self.pins_features else 0,
            *(self._project_span(self._spans[at]) for at in lumps),
        ]
        lump = self.prefix_tokens + self.summary_tokens + self.pins_tokens
        lump += sum(self._spans[at].tokens for at in lumps)
        fitted = fit(lump, wanted)
        self.prefix_tokens, self.summary_tokens, self.pins_tokens = fitted[:3]
        for at, tokens in zip(lumps, fitted[3:], strict=True):
            self._spans[at] = _resized(self._spans[at], tokens)
        self._recount()

    def _project_span(self, span: _Span) -> int:
        return sum(m.project(self.calibration) for m in self._sent if span.first_seq <= m.seq <= span.last_seq)

    def _rescale(self, reported: int) -> None:
        """Make the projected parts sum to what is left of a reported prompt beside the exact ones."""
        exact_tokens = sum(span.tokens for span in self._spans if span.exact)
        loose = [self.prefix_tokens, self.summary_tokens, self.pins_tokens]
        loose += [span.tokens for span in self._spans if not span.exact]
        if exact_tokens and (reported - exact_tokens) * 2 < sum(loose):
            self._doubt_all()
            exact_tokens = 0
            loose = loose[:3] + [span.tokens for span in self._spans]
        fitted = apportion(max(0, reported - exact_tokens), loose)
        self.prefix_tokens, self.summary_tokens, self.pins_tokens = fitted[:3]
        rest = iter(fitted[3:])
        self._spans = deque(span if span.exact else _resized(span, next(rest)) for span in self._spans)
        self._recount()

    def _shares(self, span: _Span) -> list[tuple[int, int, bool]]:
        inside = [m for m in self._sent if span.first_seq <= m.seq <= span.last_seq]
        return _split(span.tokens, inside, self.calibration)

    def _remains(self, span: _Span, first_seq: int, last_seq: int) -> Iterable[_Span]:
        shares = self._shares(span)
        for side in (
            [s for s in shares if s[0] < first_seq],
            [s for s in shares if s[0] > last_seq],
        ):
            if side:
                yield _Span(
                    side[0][0],
                    side[-1][0],
                    sum(tokens for _, tokens, _ in side),
                    sum(tokens for _, tokens, tool in side if tool),
                    exact=False,
                )

    def _recount(self) -> None:
        self._tool_tokens = sum(span.tool_tokens for span in self._spans)
        self._messages_tokens = sum(span.tokens for span in self._spans) - self._tool_tokens
        self._inexact_spans = sum(not span.exact for span in self._spans)
        self._unsent_tokens = sum(m.project(self.calibration) for m in self._unsent)
        self._thinking_items = sum(m.thinking for m in (*self._sent, *self._unsent))
        self._unsteady_items = sum(m.is_unsteady for m in (*self._sent, *self._unsent))


def _resized(span: _Span, tokens: int) -> _Span:
    tool_tokens = span.tool_tokens * tokens // span.tokens if span.tokens else 0
    return replace(span, tokens=tokens, tool_tokens=tool_tokens)


def _split(tokens: int, measures: Sequence[Measure], calibration: Calibration) -> list[tuple[int, int, bool]]:
    """Share a reported figure among its items as (seq, tokens, is tool result).

    Texts whose size a provider reported keep it; the others share the rest by their features.
    """
    wanted = [m.project(calibration) for m in measures]
    known = sum(w for w, m in zip(wanted, measures, strict=True) if m.known_tokens is not None)
    unknown = [w for w, m in zip(wanted, measures, strict=True) if m.known_tokens is None]
    if unknown and known < tokens:
        rest = iter(apportion(tokens - known, unknown))
        fitted = [w if m.known_tokens is not None else next(rest) for w, m in zip(wanted, measures, strict=True)]
    else:
        fitted = apportion(tokens, wanted)
    return [(m.seq, share, m.tool_result) for m, share in zip(measures, fitted, strict=True)]
