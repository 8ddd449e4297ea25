"""[pure] Compares a reported prompt with the previous one: drift, doubts about an interval, and calibration.

Owns the bounds of drift, doubt and truncation by the server. Keeps no prices; see `ledger`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from mew_agent.context.item_sizes import ItemSize
from mew_agent.tokens.projection import Calibration

DRIFT_TOLERANCE_TOKENS = 64
DRIFT_TOLERANCE_PERCENT = 2

DOUBT_TOKENS = 16
DOUBT_TOKENS_PER_ITEM = 4
DOUBT_SHARE = (1, 4)
"""An interval is doubtful if its growth is off by more than all three bounds; the share is of its projected part. The
reason: a server that silently drops old messages shows only in the totals."""

TRUNCATION_FALL = (4, 5)
"""A prompt below 4/5 of the one before, with nothing removed by us, was truncated by the server."""

STILL_CALLS, STILL_FACTOR = 5, 4
"""A prompt stalls if it grew by less than a quarter of the sent tokens, in five calls in a row."""

PROVEN_CALLS = 3  # predictions from counts alone without drift, after which a tokenizer's counts replace reports


class Drift(NamedTuple):
    """Predicted minus reported prompt tokens, and the consequences."""

    tokens: int
    rebased: bool
    truncated_by_server: bool
    window_tokens: int | None = None  # prompt size at which the server began to drop old messages, if it stalls


def drift_of(predicted: int, reported: int, projected_tokens: int = 0) -> Drift:
    """Return the drift of a prompt: `rebased` if unusually large. Tolerates an error of half of the projected part."""
    tokens = predicted - reported
    off = abs(tokens) - projected_tokens // 2
    rebased = off > DRIFT_TOLERANCE_TOKENS and off > reported * DRIFT_TOLERANCE_PERCENT // 100
    return Drift(tokens, rebased, truncated_by_server=False)


@dataclass
class Standstill:
    """Detects prompts that stop growing although more is sent: the server drops as much as is added."""

    _calls: int = 0
    _missing_tokens: int = 0

    def observe(self, before: int, reported: int, sent_tokens: int, *, is_steady: bool) -> bool:
        """Observe a prompt after one of `before` tokens, and the projection of its new items.

        Returns whether the prompt stalls. Unless the history `is_steady`, a template may shorten old messages; then
        only prompts of nearly the same size count.
        """
        grown = reported - before
        may_be_template = not is_steady and abs(grown) * 100 > reported * DRIFT_TOLERANCE_PERCENT
        if grown * STILL_FACTOR >= sent_tokens or may_be_template:
            self._calls = self._missing_tokens = 0
            return False
        self._calls += 1
        self._missing_tokens += sent_tokens - grown
        return self._calls >= STILL_CALLS and self._missing_tokens > DRIFT_TOLERANCE_TOKENS


@dataclass
class CountProof:
    """Tests whether a tokenizer's counts, plus a constant per message, predict a served model's reports."""

    _model: str | None = None
    _calls: int = 0  # comparable calls in a row without drift
    _miscounted: set[str] = field(default_factory=set)
    _keeps_old_calls: set[str] = field(default_factory=set)

    def observe(
        self,
        model: str,
        drift_tokens: int | None,
        sent: Sequence[ItemSize],
        calibration: Calibration,
        *,
        has_old_calls: bool,
    ) -> None:
        """Observe a report about the items `sent`; `drift_tokens` is None without a comparable earlier report.

        `has_old_calls` says whether a tool call became old with these items.
        """
        if model != self._model:
            self._model, self._calls = model, 0
        elif drift_tokens:
            self._calls = 0
            self._keeps_old_calls.discard(model)
            if calibration.wrapped:
                # An interval has taught the template's overhead. A wrong tokenizer may predict some calls by chance,
                # so one error disproves it permanently.
                self._miscounted.add(model)
        elif drift_tokens is not None and calibration.counts_fit and None not in [m.counted_tokens for m in sent]:
            self._calls += 1
            if has_old_calls:
                self._keeps_old_calls.add(model)

    def is_proven(self, *, has_calls: bool = False) -> bool:
        """Return whether counts replace reports. With `has_calls`, old tool calls must also keep their size."""
        is_steady = not has_calls or self._model in self._keeps_old_calls
        return self._calls >= PROVEN_CALLS and self._model not in self._miscounted and is_steady


class Removal(IntEnum):
    """The kind of removal since the last report."""

    NOTHING = 0
    INTERVALS = 1  # whole measured intervals with known prices
    OTHERS = 2  # anything else, or something replaced them


class Terms(NamedTuple):
    """The conditions of a call. Two prompts differ by exactly the items between them only if the terms are the same."""

    model: str  # the served model
    fingerprint: str | None  # fingerprint of everything except items; None if an earlier process made the call
    backend: str | None  # the machine that answered, if the provider names it


NO_TERMS = Terms("", None, None)


class Comparison(NamedTuple):
    """A reported prompt and the previous one. `grown_tokens` is the whole prompt if there is no previous one."""

    reported: int
    grown_tokens: int
    sent: Sequence[ItemSize]  # items between the two
    projected_tokens: int  # projected size of these items
    units: float  # features of these items together
    drift: Drift | None  # drift from the expected prompt; None without an earlier prompt
    is_comparable: bool  # whether both prompts were reported under the same terms
    same_model: bool
    same_fingerprint: bool
    removal: Removal
    last_seq: int  # the newest item sent

    @property
    def has_fallen(self) -> bool:
        """Whether the prompt shrank although nothing was removed."""
        return self.drift is not None and self.grown_tokens < 0 and self.removal is Removal.NOTHING

    @property
    def is_close(self) -> bool:
        """Whether the prompt is as large as predicted. Then it calibrates, whichever machine answered."""
        return self.drift is not None and not self.drift.rebased and self.same_model and self.same_fingerprint

    @property
    def is_interval(self) -> bool:
        """Whether the prompt's growth measures the price of the sent items."""
        if not self.sent or self.grown_tokens < 0 or self.removal is Removal.OTHERS:
            return False
        return self.is_comparable or self.is_close

    @property
    def explains_size(self) -> bool:
        """Whether the prompt shows that measured intervals kept their size."""
        if not self.same_model:
            return False
        return self.grown_tokens >= 0 or self.removal is not Removal.NOTHING or not self.is_comparable

    def is_in_doubt(self, calibration: Calibration) -> bool:
        """Return whether the growth may include more or less than the sent items."""
        if self.drift is None or self.drift.rebased:
            return self.drift is not None
        off = abs(self.drift.tokens)
        # An inexact cut leaves no interval to doubt.
        if self.removal is Removal.OTHERS or off <= DOUBT_TOKENS or off <= DOUBT_TOKENS_PER_ITEM * len(self.sent):
            return False
        part, whole = DOUBT_SHARE
        return off > sum(m.project(calibration) for m in self.sent if m.known_tokens is None) * part // whole


@dataclass
class Evidence:
    """Findings from the reports of a conversation, apart from the sizes of its items."""

    terms: Terms = NO_TERMS  # terms of the newest report
    removal: Removal = Removal.NOTHING  # since the newest report
    drift: Drift | None = None  # drift of the newest report with an earlier one
    learnt: dict[str, Calibration] = field(default_factory=dict)  # calibrations learnt from each served model
    backends: set[str | None] = field(default_factory=set)  # machines that have answered; None: unnamed
    fallen_until: int = -1
    """The newest item when a prompt last fell unexplained: the server dropped some up to it, which may return."""
    standstill: Standstill = field(default_factory=Standstill)
    count_proof: CountProof = field(default_factory=CountProof)
    has_counts: bool = False  # whether a tokenizer has counted any item

    @property
    def is_backend_steady(self) -> bool:
        """Whether the reports name their backend, and it is always the same."""
        return len(self.backends) == 1 and None not in self.backends

    @property
    def has_moved_backend(self) -> bool:
        """Whether several machines answered."""
        return len(self.backends) > 1

    def observe(
        self, seen: Comparison, terms: Terms, calibration: Calibration, *, thinking: int, unsteady: int
    ) -> None:
        """Observe a report, with the number of replies with thinking and of unsteady items in the history."""
        self.backends.add(terms.backend)
        is_whole = seen.is_comparable and seen.removal is Removal.NOTHING and not thinking
        self.drift = self._drift(seen, is_whole=is_whole, is_steady=not unsteady)
        if self.has_counts:
            has_old_calls = unsteady > thinking and any(size.question for size in seen.sent)
            drift_tokens = seen.drift.tokens if seen.drift is not None and seen.is_comparable else None
            self.count_proof.observe(terms.model, drift_tokens, seen.sent, calibration, has_old_calls=has_old_calls)
        if seen.has_fallen and seen.is_comparable:
            self.fallen_until = seen.last_seq

    def _drift(self, seen: Comparison, *, is_whole: bool, is_steady: bool) -> Drift | None:
        """Return the drift. Unless the prompt `is_whole`, our own changes may explain a smaller one."""
        drift, before = seen.drift, seen.reported - seen.grown_tokens
        if drift is None or not is_whole:
            self.standstill = Standstill()
            return drift
        if self.standstill.observe(before, seen.reported, seen.projected_tokens, is_steady=is_steady):
            return drift._replace(truncated_by_server=True, window_tokens=seen.reported)
        keep, whole = TRUNCATION_FALL
        is_truncated = seen.reported * whole < before * keep
        return drift._replace(truncated_by_server=True) if is_truncated else drift


def learn_from_interval(calibration: Calibration, grown: int, sent: Sequence[ItemSize], units: float) -> Calibration:
    """Return the calibration after an interval of `grown` tokens and the features `units`."""
    learnt = calibration.observe(grown - calibration.overhead_tokens * len(sent), units)
    if [size.counted_tokens for size in sent].count(None) == len(sent):
        return learnt
    sizes = [m.counted_tokens if m.known_tokens is None else m.known_tokens for m in sent]
    text_tokens = [tokens for tokens in sizes if tokens is not None]
    if len(text_tokens) < len(sent):
        return learnt
    # The size of every text is known, so the rest of the growth is the template's.
    projected = [
        calibration.project(m.features) if m.known_tokens is None else calibration.wrap(m.known_tokens) for m in sent
    ]
    return learnt.observe_counted(grown, sum(text_tokens), len(sent), sum(projected))
