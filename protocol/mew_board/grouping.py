"""[pure] Groups of participants, for every surface.

Writes the title of a group. Which group a participant belongs to, and the order of rows, is in its view.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

from mew_board import words
from mew_board.view import Grouping, ParticipantView

GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)

SEVERAL: Final = 5
"""From this number of agents on, totals are shown."""


class GroupSize(NamedTuple):
    """How full a context is; None is an unknown figure. `is_counted` says that `tokens` was reported or counted."""

    tokens: int | None
    max_tokens: int | None
    is_counted: bool


def about(sizes: Sequence[GroupSize | None]) -> str:
    """Say how many participants a group has, and how full their contexts of known size are together: `3, ~67% full`.

    There is one size for each participant, None without a status.
    """
    used = room = 0
    is_estimate = False
    for one in sizes:
        if one is not None and one.tokens is not None and one.max_tokens is not None:
            used, room = used + one.tokens, room + one.max_tokens
            is_estimate |= not one.is_counted
    return f"{len(sizes):,}{f', {words.fill(used, room, is_estimate=is_estimate)} full' if room else ''}"


@dataclass(frozen=True, slots=True)
class Group:
    """Participants with something in common."""

    name: str
    rows: tuple[ParticipantView, ...]

    @property
    def about(self) -> str:
        """The number of its participants, and how full they are together; see `about`."""
        return about([_size(one) for one in self.rows])

    @property
    def title(self) -> str:
        """Its name, and what there is to say about it."""
        return f"{self.name} ({self.about})"


def _size(row: ParticipantView) -> GroupSize | None:
    return None if row.status is None else GroupSize(row.status.tokens, row.status.max_tokens, row.is_counted)


def grouped(rows: Iterable[ParticipantView], by: Grouping) -> list[Group]:
    """Return rows in groups, the group of the first row first."""
    groups: dict[str, list[ParticipantView]] = {}
    for row in rows:
        groups.setdefault(row.groups[by], []).append(row)
    return [Group(name, tuple(members)) for name, members in groups.items()]
