"""Updates a space's attention items, the list of old figures, and the views for pages.

Decides when to look for items, dates each one, and limits how long a participant may be away before it counts as
disconnected. `mew_board.attention` selects and words the items. Only recomputes items of participants that reported,
joined or left, so that thousands of participants cost little.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

import anyio
import anyio.lowlevel
from mew_board.attention import aggregate, approval_item, entry_items, not_stored_item, sort_items
from mew_board.text_changes import changes_in
from mew_listener.bounded_dict import BoundedDict
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft, wire_timestamp
from mew_protocol.json_values import value_at
from mew_protocol.payloads.attention_items import Attention, AttentionAction, AttentionItem, TextChange
from mew_protocol.payloads.mcp import UndecidedProposal, arguments_of
from mew_settings.plugins import load_only

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.space_core import SpaceCore
from mew_spaces.core.state import KnownProposal
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.board_views import BoardViews
from mew_spaces.gateway.storage import Storage
from mew_spaces.log.memory import SpaceLog

log = logging.getLogger("mew_spaces")

REFRESH_SECONDS: Final = 0.2
"""Interval between searches for items while envelopes arrive; longer if a search takes long."""

QUIET_ROUNDS: Final = 5
"""After how many such times it is looked for without envelopes: time passes, too."""

ABSENCE_GRACE: Final = timedelta(seconds=10)
"""Participants reconnect after a break; a shorter absence needs no person."""

START_GRACE: Final = timedelta(seconds=60)
"""For how long the programs of space.yaml may take to join when the gateway starts."""

RECEIVERS: Final = "mew_spaces.attention_receivers"
"""The table of functions that make an `AttentionReceiver`, of the options, the space's id and the folder."""

_MOST_SHOWN: Final = 16
"""For how many different capabilities of readers items are kept."""

_NO_CAPABILITIES: Final = CapabilitySet()

_Items = tuple[AttentionItem, ...]
_Shown = dict[str, tuple[AttentionItem, AttentionItem]]
"""Items by id, each with the one that readers get for it."""


class AttentionReceiver(Protocol):
    """Receives the attention items of one space, and forwards them. Created by entries of its table."""

    takes_over: bool
    """Whether another gateway of the space has passed items on so far."""

    def observe(self, items: Iterable[AttentionItem], *, posts: bool = True) -> None:
        """Note the current items. Without `posts`, another gateway forwards them."""

    async def run(self) -> None:
        """Forward items until cancelled."""


def attention_receiver(config: SpaceConfig, folder: Path) -> AttentionReceiver | None:
    """Return the receiver configured by `attention.webhook`, if any. Raises `SpacesError` if its part is missing.

    Configured paths are relative to `folder`.
    """
    if config.attention.webhook is None:
        return None
    make = load_only(RECEIVERS)
    if make is None:
        raise SpacesError("attention.webhook: no installed part of mew-agent posts to it")
    return cast("AttentionReceiver", make(config.attention, config.space.id, folder))


class _Approval(NamedTuple):
    """The approval item of `proposal`, with its call's changes."""

    proposal: KnownProposal
    item: AttentionItem
    changes: dict[str, TextChange]


class _ParticipantItems(NamedTuple):
    """The items of a participant, and all that they were computed from."""

    key: tuple[object, ...]
    items: _Items


@dataclass(eq=False)
class AttentionWatch:
    """The attention items of one space. `refresh` updates them; a changed list is a new tuple."""

    space: SpaceCore
    config: SpaceConfig
    log: SpaceLog
    clock: Callable[[], datetime]
    started_at: datetime
    receiver: AttentionReceiver | None
    storage: Storage
    single: _Items = ()
    """One item for each cause."""
    items: _Items = ()
    """The same, many of a kind as one."""
    outdated: Mapping[str, dict[str, str]] = field(default_factory=dict)
    """The participants with an old figure: `outdated` and `figure_at` of their lines of the board."""
    views: BoardViews = field(init=False)
    _is_behind: bool = False
    """Whether views are to be computed as soon as possible."""

    # The only state: when the cause of an item began (by its id), and when a participant was first seen away.
    _since: dict[str, str] = field(default_factory=dict)
    _absent: dict[str, datetime] = field(default_factory=dict)

    # Caches: what `refresh` and `for_reader` computed last, so that unchanged items stay the same objects.
    _approvals: dict[str, "_Approval"] = field(default_factory=dict)
    """By the id of the proposal."""
    _changes: Mapping[str, dict[str, TextChange]] = field(default_factory=dict)
    """The changes that proposed calls would make, by the item of their approval."""
    _cached_items: dict[str, "_ParticipantItems"] = field(default_factory=dict)
    _cached_shown: BoundedDict[CapabilitySet, _Shown] = field(default_factory=lambda: BoundedDict(_MOST_SHOWN))
    """The items as readers with the same capabilities get them."""

    def __post_init__(self) -> None:
        self.views = BoardViews(self.space, self.config)
        participants = self.config.participants.items()
        self._launched = frozenset(name for name, one in participants if one.auto_start and one.has_program)

    async def run(self, announce: Callable[[], None]) -> None:
        """Update the items until cancelled; call `announce` after each change."""
        position, rounds, took = None, 0, 0.0
        while True:
            await anyio.sleep(max(REFRESH_SECONDS, 20 * took))  # at most a twentieth of the event loop's time
            rounds += 1
            if self._is_behind or self.log.position != position or rounds >= QUIET_ROUNDS:
                position, rounds, begun = self.log.position, 0, anyio.current_time()
                try:
                    if self.refresh():
                        announce()
                    if self.receiver is not None:
                        self.receiver.observe(self.items, posts=self.storage.is_leader)
                except Exception:  # a participant's report must not end the other tasks of the gateway
                    log.exception("failed to find what needs a person")
                took = anyio.current_time() - begun

    def refresh(self) -> bool:
        """Update the items now. Returns whether anything changed."""
        now = self.clock()
        found, at = self._find(now), wire_timestamp(now)
        self._since = {one.id: self._since.get(one.id) or one.since or at for one in found}
        dated = [_dated(one, self._since[one.id]) for one in found]
        single, outdated = sort_items(dated), self._find_outdated(now)
        is_same = single == self.single
        is_changed = not is_same or outdated != self.outdated
        self.outdated = outdated
        if not is_same:
            kept = {one.id: one for one in self.single}
            self.single = tuple(known if (known := kept.get(one.id)) == one else one for one in single)
            self.items = aggregate(self.single)
        before = self.views.number
        self._is_behind = self.views.followers > 0 and self.views.refresh(self.single, now)
        return is_changed or self.views.number != before

    async def refresh_views(self) -> None:
        """Compute all outdated views, and yield to other tasks between them."""
        self.refresh()
        while self.views.refresh(self.single, self.clock()):
            await anyio.lowlevel.checkpoint()

    def _find(self, now: datetime) -> list[AttentionItem]:
        found = [] if self.storage.is_storing else [not_stored_item()]
        found += self._find_approvals(now)
        names = self.space.names
        for name in names:
            found += self._items_of(name, now)
        for table in (self._cached_items, self._absent):
            for gone in table.keys() - set(names):
                del table[gone]
        return found

    def _find_approvals(self, now: datetime) -> Iterator[AttentionItem]:
        """Yield the items of proposals. Creates each once, because a changed proposal is a new object."""
        known, self._approvals = self._approvals, {}
        for name, one in self.space.membership.proposals.undecided.items():
            approval = known.get(name)
            if approval is None or approval.proposal is not one:
                proposal = UndecidedProposal.model_validate(one.describe(now))
                item = approval_item(proposal, now=now)
                approval = _Approval(one, item, changes_in(arguments_of(proposal.body)))
            self._approvals[name] = approval
            yield approval.item
        self._changes = {one.item.id: one.changes for one in self._approvals.values()}

    def _find_outdated(self, now: datetime) -> dict[str, dict[str, str]]:
        board = self.space.board
        entries = (board.entry(name, connected=False, now=now) for name in board.outdated)
        return {one.id: {"outdated": one.outdated, "figure_at": one.figure_at or ""} for one in entries if one.outdated}

    def for_reader(self, reader: str | None) -> Attention:
        """Return the items with the allowed actions of `reader`; None is an observer, without actions."""
        held = _NO_CAPABILITIES if reader is None else self.space.membership.permissions_of(reader).capabilities
        before, shown = self._cached_shown.get(held, {}), _Shown()
        items = tuple(self._for_reader(one, held, before, shown) for one in self.items)
        self._cached_shown[held] = shown
        return Attention(space=self.space.id, at=wire_timestamp(self.clock()), items=items)

    def _items_of(self, name: str, now: datetime) -> _Items:
        """Return the items of one participant; the cached ones if nothing changed."""
        reported = self.space.state.statuses.get(name)
        is_connected = name in self.space.members
        if self._is_too_early(name, now, is_connected=is_connected, has_reported=reported is not None):
            return ()
        # Compactions and unread messages are checked each time, because their age counts.
        is_timed = reported is not None and (
            reported.status.get("status") == "compacting"
            or value_at(reported.status, "context", "queued", "messages") not in (None, 0)
            or self.space.board.has_stored(name)
        )
        is_old = name in self.space.board.outdated
        key = (reported.envelope_id if reported is not None else None, is_connected, is_old, is_timed and now)
        cached = self._cached_items.get(name)
        if cached is not None and cached.key == key:
            return cached.items
        entry = self.space.board.entry(name, connected=is_connected, now=now)
        items = entry_items(entry, now=now, is_expected=name in self._launched)
        if not is_connected:
            absence = {"since": wire_timestamp(self._absent[name])}
            items = tuple(one if one.kind == "unread" else one.model_copy(update=absence) for one in items)
        self._cached_items[name] = _ParticipantItems(key, items)
        return items

    def _is_too_early(self, name: str, now: datetime, *, is_connected: bool, has_reported: bool) -> bool:
        """Return True for a participant that has just left, or just joined and need not have reported yet."""
        if is_connected:
            self._absent.pop(name, None)
            return not has_reported
        if now - self._absent.setdefault(name, now) < ABSENCE_GRACE:
            return True
        is_late = name in self._launched and now - self.started_at >= START_GRACE
        return not has_reported and not is_late

    def _for_reader(self, item: AttentionItem, held: CapabilitySet, before: _Shown, shown: _Shown) -> AttentionItem:
        """Return an item for readers with these capabilities, reusing an equal one of `before`, and cache it."""
        known = before.get(item.id)
        if known is None or known[0] is not item:
            more: dict[str, object] = {"actions": tuple(self._action_for(one, held) for one in item.actions)}
            if item.items:
                more["items"] = tuple(self._for_reader(one, held, before, shown) for one in item.items)
            if changes := self._changes.get(item.id):
                more["changes"] = changes
            known = item, item.model_copy(update=more)
        else:
            shown.update((one.id, before[one.id]) for one in item.items)
        shown[item.id] = known
        return known[1]

    def _action_for(self, action: AttentionAction, held: CapabilitySet) -> AttentionAction:
        if action.envelope is None:
            return action
        ignore_to = self.config.capabilities.ignore_to
        is_allowed = held.allows(Draft.model_validate(action.envelope), ignore_to=ignore_to, approving=True)
        return action.model_copy(update={"allowed": is_allowed})


def _dated(item: AttentionItem, since: str) -> AttentionItem:
    """Return an item with its start; an unchanged item stays the same object, for fast comparisons."""
    return item if item.since == since else item.model_copy(update={"since": since})
