"""[pure] Groups of participants, for the table, the terminal application and the demo.

Finds the group of a participant, and its title. The order of rows is `ParticipantView.order`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from mew_board import words
from mew_board.view import ParticipantView

Grouping = Literal["role", "model", "state"]
"""How rows may be grouped. The group of the most urgent row comes first."""

GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)

SEVERAL: Final = 5
"""From this number of agents on, totals are shown."""


@dataclass(frozen=True, slots=True)
class Group:
    """Participants with something in common."""

    name: str
    rows: tuple[ParticipantView, ...]

    @property
    def title(self) -> str:
        """Its name, the number of its participants, and how full the contexts of known size are together."""
        sizes = [(one, one.status.tokens, one.status.max_tokens) for one in self.rows if one.status is not None]
        known = [(one, tokens, size) for one, tokens, size in sizes if tokens is not None and size]
        share = ""
        if known:
            percent = 100 * sum(tokens for _, tokens, _ in known) // sum(size for _, _, size in known)
            share = f", {'' if all(one.is_counted for one, _, _ in known) else '~'}{percent}% full"
        return f"{words.clean(self.name)} ({len(self.rows)}{share})"


def grouped(rows: Iterable[ParticipantView], by: Grouping) -> list[Group]:
    """Return rows in groups, the group of the first row first."""
    groups: dict[str, list[ParticipantView]] = {}
    for row in rows:
        groups.setdefault(_name(row, by), []).append(row)
    return [Group(name, tuple(members)) for name, members in groups.items()]


def _name(row: ParticipantView, by: Grouping) -> str:
    match by:
        case "model":
            return (row.report.model if row.report is not None else None) or "no model reported"
        case "role":
            return f"{row.role}s" if row.role != "person" else "people"
        case "state":
            return row.state
