"""Updates the views of a space's board for connected pages.

Recomputes a view when its participant reported, joined, left or needs a person, and that of a growing context from time
to time, and corrects the sums of its groups and of the space. Computes nothing without readers. `mew_board` builds the
views.
"""

from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Final

from mew_board.board_json import Grouping, ShownBoard, ShownGroup, ShownParticipant
from mew_board.grouping import Sums, about, sums_of, totals
from mew_board.view import ParticipantView, items_of
from mew_protocol.envelope import wire_timestamp
from mew_protocol.payloads.attention_items import AttentionItem

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.space_core import SpaceCore

AT_ONCE: Final = 100
"""How many views are computed before others get their turn."""

_MOST_REMOVED: Final = 1_000
"""How many removals are kept for readers that have not seen them."""

_GROWTH_SECONDS: Final = 10
"""Interval at which the time to a compaction is projected again."""


@dataclass(slots=True)
class _KnownView:
    """A view, the cause and the number of its last change, and its part of the sums."""

    key: tuple[object, ...]
    shown: ShownParticipant
    number: int
    sums: Sums


@dataclass(slots=True)
class _KnownGroup:
    """The sums of a group, and the number of their last change."""

    sums: Sums = field(default_factory=Sums)
    number: int = 0


@dataclass(eq=False, slots=True)
class BoardViews:
    """The views of one space. `number` counts changes, so that readers get only newer ones."""

    space: SpaceCore
    config: SpaceConfig
    followers: int = 0
    """How many readers follow the views."""
    number: int = 0
    _lines: dict[str, _KnownView] = field(default_factory=dict)
    """The views, the one that changed last at the end."""
    _totals: Sums = field(default_factory=Sums)
    _groups: dict[tuple[Grouping, str], _KnownGroup] = field(default_factory=dict)
    """Groups by grouping and name; those without a participant stay until there are many, so that readers learn it."""
    _removed: dict[str, int] = field(default_factory=dict)
    _forgotten: int = -1
    """The number of the last removal that is no longer known."""
    _items: tuple[AttentionItem, ...] = ()
    _items_of: dict[str, tuple[AttentionItem, ...]] = field(default_factory=dict)

    def refresh(self, items: tuple[AttentionItem, ...], now: datetime) -> bool:
        """Compute at most `AT_ONCE` views again. Returns True if more are waiting."""
        if items is not self._items:
            self._items, self._items_of = items, items_of(items)
        names = self.space.names
        for gone in self._lines.keys() - set(names):
            self.number += 1
            self._add(self._lines.pop(gone), -1)
            self._removed[gone] = self.number
        empty = [key for key, one in self._groups.items() if not one.sums["members"]]
        if len(self._removed) + len(empty) > _MOST_REMOVED:
            self._removed, self._forgotten = {}, self.number
            for group in empty:
                del self._groups[group]
        left = AT_ONCE
        for name in names:
            key = self._key(name, now)
            known = self._lines.get(name)
            if known is not None and known.key == key:
                continue
            if not left:
                return True
            left -= 1
            self._compute(name, key, known, now)
        return False

    def _key(self, name: str, now: datetime) -> tuple[object, ...]:
        """Return the values on which the view of a participant depends."""
        board = self.space.board
        reported = self.space.state.statuses.get(name)
        grows = len(board.trends.get(name, ())) > 1 and int(now.timestamp()) // _GROWTH_SECONDS
        envelope_id = reported.envelope_id if reported is not None else None
        return (
            envelope_id,
            name in self.space.members,
            board.outdated.get(name),
            self._items_of.get(name),
            grows,
            board.stored.get(name),
        )

    def _compute(self, name: str, key: tuple[object, ...], known: _KnownView | None, now: datetime) -> None:
        entry = self.space.board.entry(name, connected=name in self.space.members, now=now)
        settings = self.config.participants.get(name)
        view = ParticipantView(
            entry,
            None,
            expects_context=settings is not None and settings.acts_as == "agent",
            items=self._items_of.get(name, ()),
            is_person=self.config.is_person(name),
        )
        line = ShownParticipant.model_validate(view)
        sums = sums_of(view)
        if known is not None and (known.shown, known.sums) == (line, sums):
            known.key = key
            return
        self.number += 1
        self._removed.pop(name, None)
        if known is not None:
            self._add(self._lines.pop(name), -1)
        self._lines[name] = _KnownView(key, line, self.number, sums)
        self._add(self._lines[name], 1)

    def _add(self, one: _KnownView, sign: int) -> None:
        """Add a view to the sums of the space and of its groups, or subtract it."""
        groups = [self._groups.setdefault(group, _KnownGroup()) for group in one.shown.groups.items()]
        for group in groups:
            group.number = self.number
        for sums in (self._totals, *(group.sums for group in groups)):
            (sums.update if sign > 0 else sums.subtract)(one.sums)

    def since(self, number: int | None, now: datetime) -> ShownBoard:
        """Return the changes after a number; without one, everything."""
        number = None if number is not None and number < self._forgotten else number
        first = -1 if number is None else number
        changed = takewhile(lambda one: one.number > first, reversed(self._lines.values()))
        removed = () if number is None else tuple(name for name, at in self._removed.items() if at > first)
        groups = (
            ShownGroup(by=by, name=name, about=about(one.sums) if one.sums["members"] else "")
            for (by, name), one in self._groups.items()
            if one.number > first
        )
        return ShownBoard(
            space=self.space.id,
            name=self.space.name,
            at=wire_timestamp(now),
            is_whole=number is None,
            participants=tuple(one.shown for one in changed),
            removed=removed,
            totals=totals(self._totals),
            groups=tuple(groups),
        )
