"""Keeps the views of a space's board up to date for pages that follow it.

Computes a view again if its participant reported, came or went, or needs a person, and that of a growing context from
time to time. Computes nothing while nobody follows. What a view shows is decided in `mew_board`.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from mew_board.board_json import ShownBoard, ShownGroup, ShownParticipant, ShownTotals, shown, shown_groups, totals
from mew_board.view import ParticipantView, items_of
from mew_protocol.envelope import wire_timestamp
from mew_protocol.payloads.attention_items import AttentionItem

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.space import SpaceCore

AT_ONCE: Final = 100
"""How many views are computed before others get their turn."""

_MOST_REMOVED: Final = 1_000
"""How many removals are kept for readers that have not seen them."""

_GROWTH_SECONDS: Final = 10
"""Interval at which the time to a compaction is projected again."""


@dataclass(slots=True)
class _KnownView:
    """A view, the cause of its last change, and the number of that change."""

    key: tuple[object, ...]
    view: ParticipantView
    shown: ShownParticipant
    number: int


@dataclass(eq=False, slots=True)
class BoardViews:
    """The views of one space. `number` counts changes, so that each reader gets only newer ones."""

    space: SpaceCore
    config: SpaceConfig
    followers: int = 0
    """How many readers follow the views."""
    number: int = 0
    _lines: dict[str, _KnownView] = field(default_factory=dict)
    _removed: dict[str, int] = field(default_factory=dict)
    _forgotten: int = -1
    """The number of the last removal that is no longer known."""
    _sums: tuple[int, ShownTotals, tuple[ShownGroup, ...]] | None = None
    """The number of changes at which these sums were computed, for all readers."""
    _items: tuple[AttentionItem, ...] = ()
    _items_of: dict[str, tuple[AttentionItem, ...]] = field(default_factory=dict)

    def refresh(self, items: tuple[AttentionItem, ...], now: datetime) -> bool:
        """Compute at most `AT_ONCE` views again. Returns True if more are waiting."""
        if items is not self._items:
            self._items, self._items_of = items, items_of(items)
        names = self.space.names
        for gone in self._lines.keys() - set(names):
            self.number += 1
            del self._lines[gone]
            self._removed[gone] = self.number
        if len(self._removed) > _MOST_REMOVED:
            self._removed, self._forgotten = {}, self.number
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
        line = shown(view)
        if known is not None and known.shown == line:
            known.key = key
            return
        self.number += 1
        self._removed.pop(name, None)
        self._lines[name] = _KnownView(key, view, line, self.number)

    def since(self, number: int | None, now: datetime) -> ShownBoard:
        """Return the changes after a number; without one, everything."""
        number = None if number is not None and number < self._forgotten else number
        if self._sums is None or self._sums[0] != self.number:
            lines = self._lines.values()
            groups = shown_groups(one.shown for one in lines)
            self._sums = self.number, totals(one.view for one in lines), groups
        _, sums, groups = self._sums
        first = -1 if number is None else number
        changed = (one.shown for one in self._lines.values() if one.number > first)
        removed = () if number is None else tuple(name for name, at in self._removed.items() if at > first)
        return ShownBoard(
            space=self.space.id,
            name=self.space.name,
            at=wire_timestamp(now),
            is_whole=number is None,
            participants=tuple(changed),
            removed=removed,
            totals=sums,
            groups=groups,
        )
