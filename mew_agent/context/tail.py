"""[pure] The unsent tail: items that no reported call has sent yet, and what they will probably take.

Does not know reports or the items before them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mew_agent.context.intervals import span
from mew_agent.context.measures import Measure
from mew_agent.tokens.projection import Calibration


@dataclass
class Tail:
    """Items that no reported call has sent, oldest first. Adding and summing cost the same however many there are."""

    items: list[Measure] = field(default_factory=list)
    tokens: int = 0  # tokens that all of them will probably take
    _projected: int = 0
    _counted: int = 0

    @property
    def is_counted(self) -> bool:
        """Whether a tokenizer counted in it and nothing in it is projected from features."""
        return self._counted > 0 and not self._projected

    def add(self, measure: Measure, calibration: Calibration) -> None:
        """Add an item."""
        self.items.append(measure)
        self._add_to_sums(measure, calibration)

    def remove_until(self, last_seq: int, calibration: Calibration) -> tuple[list[Measure], int]:
        """Remove the items up to `last_seq`. Returns them and what they will probably take together."""
        removed, tokens = self.items, self.tokens
        if not removed or removed[-1].seq <= last_seq:  # usually everything was sent
            self.items, self.tokens, self._projected, self._counted = [], 0, 0, 0
            return removed, tokens
        place = span(removed, 0, last_seq).stop
        removed, self.items = removed[:place], removed[place:]
        self.project(calibration)
        return removed, tokens - self.tokens

    def cut(self, first_seq: int, last_seq: int, calibration: Calibration) -> None:
        """Remove the items first_seq..last_seq."""
        del self.items[span(self.items, first_seq, last_seq)]
        self.project(calibration)

    def put_back(self, measures: Sequence[Measure], calibration: Calibration) -> None:
        """Add items that were cut, in the order of their seqs."""
        self.items = sorted((*self.items, *measures), key=lambda measure: measure.seq)
        self.project(calibration)

    def replace(self, new: Mapping[int, Measure], calibration: Calibration) -> None:
        """Replace items by others of the same seq."""
        self.items = [new.get(measure.seq, measure) for measure in self.items]
        self.project(calibration)

    def project(self, calibration: Calibration) -> None:
        """Sum up all items with this calibration."""
        self.tokens = self._projected = self._counted = 0
        for measure in self.items:
            self._add_to_sums(measure, calibration)

    def between(self, first_seq: int, last_seq: int) -> list[Measure]:
        """Return the items first_seq..last_seq that are in the tail."""
        return self.items[span(self.items, first_seq, last_seq)]

    def _add_to_sums(self, measure: Measure, calibration: Calibration) -> None:
        self.tokens += measure.project(calibration)
        is_counted = measure.is_counted(calibration)
        self._counted += is_counted
        self._projected += not is_counted and measure.known_tokens is None
