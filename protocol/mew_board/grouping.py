"""[pure] Groups of participants and totals of a space, for every surface.

Computes the sums for group titles and totals. Sums can be corrected for one participant, so that a change takes
constant time in a large space. A participant's view has its group and its order.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, get_args

from mew_protocol.payloads.participant import report_of

from mew_board import words
from mew_board.board_json import Grouping, ShownTotals
from mew_board.figures import figure
from mew_board.view import ParticipantView

GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)

SEVERAL: Final = 5
"""From this number of agents on, totals are shown."""

Sums = Counter[str]
"""The totals of participants: those of `sums_of`, added and subtracted."""


def sums_of(view: ParticipantView) -> Sums:
    """Return one participant's part of its groups' sums and of the totals.

    `used` and `room` are tokens and window if both are known; `guessed` counts estimates among them.
    """
    found = Sums(members=1)
    if view.tokens is not None and view.max_tokens is not None:
        found.update(used=view.tokens, room=view.max_tokens, guessed=int(not view.is_counted))
    if not view.has_context:
        return found
    spending = report_of(view.status).spending
    found.update(agents=1, waiting=int(view.is_blocked), compacting=int(view.is_compacting))
    if view.tokens is None:
        found.update(unknown=1)
    else:
        found.update(tokens=view.tokens, max_tokens=view.max_tokens or 0, estimates=int(not view.is_counted))
    if spending is not None and spending.spent_tokens is not None:
        found.update(spent=spending.spent_tokens, spenders=1)
    return found


def total(views: Iterable[ParticipantView]) -> Sums:
    """Add up participants."""
    found = Sums()
    for one in views:
        found.update(sums_of(one))
    return found


def about(sums: Sums) -> str:
    """Format a group's number of participants, and the joint fill of their contexts of known size: `3, ~67% full`."""
    full = words.fill(sums["used"], sums["room"], is_estimate=sums["guessed"] > 0) if sums["room"] else ""
    return f"{sums['members']:,}{full and f', {full} full'}"


def totals(sums: Sums) -> ShownTotals:
    """Format totals: `12 agents · 482,110 of 1,536,000 tokens in use · 3 blocked until you act · 1 compacting`."""
    has_size = sums["agents"] > sums["unknown"]
    found = ShownTotals(
        agents=sums["agents"],
        tokens=sums["tokens"] if has_size else None,
        max_tokens=sums["max_tokens"] or None,
        is_estimate=sums["estimates"] > 0,
        unknown=sums["unknown"],
        spent_tokens=sums["spent"] if sums["spenders"] else None,
        waiting=sums["waiting"],
        compacting=sums["compacting"],
    )
    return found.model_copy(update={"text": " · ".join(_pieces(found)) or "No agent has reported a context yet."})


def _pieces(found: ShownTotals) -> Iterator[str]:
    """Yield the parts of the totals; nothing without agents."""
    if not found.agents:
        return
    size = f" of {found.max_tokens:,}" if found.max_tokens else ""
    yield words.count_of(found.agents, "agent")
    yield f"{figure(found.tokens, is_estimate=found.is_estimate)}{size} tokens in use"
    if found.unknown:
        yield f"{found.unknown:,} unknown"
    if found.spent_tokens is not None:
        yield f"{found.spent_tokens:,} spent"
    if found.waiting:
        yield f"{found.waiting:,} blocked until you act"
    if found.compacting:
        yield f"{found.compacting:,} compacting"


class Group(NamedTuple):
    """Participants with something in common."""

    name: str
    rows: list[ParticipantView]

    @property
    def about(self) -> str:
        """The number of its participants, and their joint fill."""
        return about(total(self.rows))

    @property
    def title(self) -> str:
        """Its name and its state."""
        return f"{self.name} ({self.about})"


def grouped(rows: Iterable[ParticipantView], by: Grouping) -> list[Group]:
    """Return rows in groups, the group of the first row first.

    A title describes the whole group: it also counts participants that a list leaves out.
    """
    groups: dict[str, list[ParticipantView]] = {}
    for row in rows:
        groups.setdefault(row.groups[by], []).append(row)
    return [Group(*one) for one in groups.items()]
