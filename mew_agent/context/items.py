"""[pure] The items of a history as measures: which of them a reported call has sent, and the likely size of the rest.

Does not know reports or prices; see `intervals` and `ledger`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from mew_agent.context.measures import Measure
from mew_agent.tokens.projection import Calibration

_SEQ: Callable[[Measure], int] = attrgetter("seq")


@dataclass
class Items:
    """All items, oldest first. Adding an item and reading a sum cost the same however many there are."""

    measures: list[Measure] = field(default_factory=list)
    unsent_tokens: int = 0  # projected size of all unsent items together
    thinking: int = 0  # number of replies with thinking
    unsteady: int = 0  # number of replies with thinking or tool calls

    _sent: int = 0  # the first so many measures were sent by a reported call
    _projected: int = 0  # number of unsent items that are projected from features
    _counted: int = 0  # number of unsent items that a trusted tokenizer counted

    @property
    def sent_until(self) -> int:
        """The seq of the newest item in a reported prompt; -1 if there is none."""
        return self.measures[self._sent - 1].seq if self._sent else -1

    @property
    def has_unsent(self) -> bool:
        """Whether any item is unsent."""
        return self._sent < len(self.measures)

    @property
    def is_unsent_counted(self) -> bool:
        """Whether a tokenizer counted some unsent items and none is projected from features."""
        return self._counted > 0 and not self._projected

    @property
    def sent(self) -> Sequence[Measure]:
        """The items that a reported call has sent."""
        return self.measures[: self._sent]

    @property
    def sent_count(self) -> int:
        """Number of items that a reported call has sent."""
        return self._sent

    @property
    def unsent(self) -> Sequence[Measure]:
        """The items that no reported call has sent."""
        return self.measures[self._sent :]

    def add(self, measure: Measure, calibration: Calibration) -> None:
        """Add an unsent item."""
        self.measures.append(measure)
        self.thinking += measure.thinking
        self.unsteady += measure.is_unsteady
        self._add_to_sums(measure, calibration)

    def between(self, first_seq: int, last_seq: int) -> list[Measure]:
        """Return the items first_seq..last_seq."""
        return self.measures[span(self.measures, first_seq, last_seq)]

    def unsent_between(self, first_seq: int, last_seq: int) -> list[Measure]:
        """Return the unsent items among first_seq..last_seq."""
        return self.between(max(first_seq, self.sent_until + 1), last_seq)

    def send(self, last_seq: int, calibration: Calibration) -> tuple[list[Measure], int]:
        """Treat all items up to `last_seq` as sent. Returns the new ones among them, and their projected size."""
        measures, first, tokens = self.measures, self._sent, self.unsent_tokens
        if first == len(measures) or measures[-1].seq <= last_seq:  # the usual case: everything was sent
            self._sent = len(measures)
            self.unsent_tokens = self._projected = self._counted = 0
            return measures[first:], tokens
        self._sent = max(first, bisect_right(measures, last_seq, key=_SEQ))
        self.project(calibration)
        return measures[first : self._sent], tokens - self.unsent_tokens

    def set(self, measures: Sequence[Measure], sent_until: int, calibration: Calibration) -> None:
        """Replace all items; those up to `sent_until` were sent."""
        self.measures = sorted(measures, key=_SEQ)
        self._sent = bisect_right(self.measures, sent_until, key=_SEQ)
        self.thinking = sum(measure.thinking for measure in self.measures)
        self.unsteady = sum(measure.is_unsteady for measure in self.measures)
        self.project(calibration)

    def project(self, calibration: Calibration) -> None:
        """Sum up the unsent items with this calibration."""
        self.unsent_tokens = self._projected = self._counted = 0
        for measure in self.unsent:
            self._add_to_sums(measure, calibration)

    def _add_to_sums(self, measure: Measure, calibration: Calibration) -> None:
        self.unsent_tokens += measure.project(calibration)
        is_counted = measure.is_counted(calibration)
        self._counted += is_counted
        self._projected += not is_counted and measure.known_tokens is None


def span(measures: Sequence[Measure], first_seq: int, last_seq: int) -> slice:
    """Return the slice of the measures first_seq..last_seq."""
    first = bisect_left(measures, first_seq, key=_SEQ)
    return slice(first, max(first, bisect_right(measures, last_seq, key=_SEQ)))
