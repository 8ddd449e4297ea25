"""[pure] The items that no reported call has sent yet: the kept reply, and whatever entered since.

Owns their projected sum and how it is known. It knows no report; `ledger` moves items out of it when one comes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from mew_agent.context.measures import Measure
from mew_agent.tokens.projection import Calibration

_SEQ: Callable[[Measure], int] = attrgetter("seq")


@dataclass
class Tail:
    """Oldest first. Adding, and asking for the sum, cost the same however many there are."""

    items: list[Measure] = field(default_factory=list)
    tokens: int = 0
    """What they will probably take together."""
    _projected: int = 0
    _counted: int = 0

    @property
    def is_counted(self) -> bool:
        """Whether a tokenizer counted in it, and no size in it is projected from features."""
        return self._counted > 0 and not self._projected

    def add(self, measure: Measure, calibration: Calibration) -> None:
        """One more."""
        self.items.append(measure)
        self._sum_up(measure, calibration)

    def count(self, seq: int, counted_tokens: int, calibration: Calibration) -> None:
        """A tokenizer counted the text of one of them; nothing happens when it is not here any more."""
        place = self._place(seq)
        if place < len(self.items) and self.items[place].seq == seq:
            before = self.items[place]
            self._sum_up(before, calibration, -1)
            self.items[place] = replace(before, counted_tokens=counted_tokens)
            self._sum_up(self.items[place], calibration)

    def take_until(self, last_seq: int) -> list[Measure]:
        """Those up to `last_seq` leave. The sum of the rest is for `project` to find."""
        if not self.items or self.items[-1].seq <= last_seq:
            taken, self.items = self.items, []
            return taken
        place = bisect_right(self.items, last_seq, key=_SEQ)
        taken, self.items = self.items[:place], self.items[place:]
        return taken

    def leave_out(self, first_seq: int, last_seq: int, calibration: Calibration) -> None:
        """The items first_seq..last_seq are gone."""
        first, last = self._place(first_seq), bisect_right(self.items, last_seq, key=_SEQ)
        del self.items[first:last]
        self.project(calibration)

    def replace(self, new: Mapping[int, Measure], calibration: Calibration) -> None:
        """Others of the same seq stand in place of some."""
        self.items = [new.get(measure.seq, measure) for measure in self.items]
        self.project(calibration)

    def project(self, calibration: Calibration) -> None:
        """Sum up anew, by what is known now."""
        self.tokens = self._projected = self._counted = 0
        for measure in self.items:
            self._sum_up(measure, calibration)

    def between(self, first_seq: int, last_seq: int) -> list[Measure]:
        """The items first_seq..last_seq that are here."""
        return self.items[self._place(first_seq) : bisect_right(self.items, last_seq, key=_SEQ)]

    def _place(self, seq: int) -> int:
        return bisect_left(self.items, seq, key=_SEQ)

    def _sum_up(self, measure: Measure, calibration: Calibration, sign: int = 1) -> None:
        self.tokens += sign * measure.project(calibration)
        is_counted = measure.counted_tokens is not None and calibration.counts_fit
        self._counted += sign * is_counted
        self._projected += sign * (not is_counted and measure.known_tokens is None)
