"""[pure] Groups of participants, for every surface.

Writes the title of a group. Which group a participant belongs to, and the order of rows, is in its view.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, get_args

from mew_board import words
from mew_board.view import Grouping, ParticipantView

GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)

SEVERAL: Final = 5
"""From this number of agents on, totals are shown."""


@dataclass(frozen=True, slots=True)
class Group:
    """Participants with something in common."""

    name: str
    rows: tuple[ParticipantView, ...]

    @property
    def about(self) -> str:
        """The number of its participants, and how full the contexts of known size are together: `3, ~67% full`."""
        sizes = [(one, one.status.tokens, one.status.max_tokens) for one in self.rows if one.status is not None]
        known = [(one, tokens, size) for one, tokens, size in sizes if tokens is not None and size is not None]
        if not known:
            return f"{len(self.rows):,}"
        used, room = sum(tokens for _, tokens, _ in known), sum(size for _, _, size in known)
        is_estimate = not all(one.is_counted for one, _, _ in known)
        return f"{len(self.rows):,}, {words.fill(used, room, is_estimate=is_estimate)} full"

    @property
    def title(self) -> str:
        """Its name, and what there is to say about it."""
        return f"{self.name} ({self.about})"


def grouped(rows: Iterable[ParticipantView], by: Grouping) -> list[Group]:
    """Return rows in groups, the group of the first row first."""
    groups: dict[str, list[ParticipantView]] = {}
    for row in rows:
        groups.setdefault(row.groups[by], []).append(row)
    return [Group(name, tuple(members)) for name, members in groups.items()]
