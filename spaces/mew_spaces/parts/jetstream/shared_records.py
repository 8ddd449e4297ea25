"""The shared records of a space's gateways in the backplane: the space record, gateway numbers, snapshots and leases.

The space record has the epoch, and digests of the parts of space.yaml that affect the shared state. Gateways with other
values would decide differently, so they cannot join. Each gateway renews its own lease, and one holds the lease
`ticker`. Applies nothing.
"""

import hashlib
import logging
import secrets
import zlib
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
from anyio import to_thread
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.events import RULES_VERSION
from mew_spaces.core.space_core import SpaceSnapshot
from mew_spaces.core.state import SpaceState
from mew_spaces.errors import SpacesError
from mew_spaces.parts.jetstream.backplane import (
    LEASE_SECONDS,
    Backplane,
    BackplaneError,
    BackplaneRefused,
    Conflict,
    HistoryLost,
    SavedValue,
    report_foreign,
)

KEPT_SNAPSHOTS = 3
"""A gateway that starts begins with the oldest, so that its own history reaches back."""

MAX_SNAPSHOT_BYTES = 1024 * 1024 * 1024
"""How large a snapshot may be in memory."""

_LOST_NUMBERS = 1 << 29
"""Gateways have numbers above this one if the newest number was lost."""

_MAX_DIGITS = 10
_NUMBERS = TypeAdapter(list[Annotated[int, Field(ge=0, strict=True)]])
_LEASE_PREFIX = "gateway."
_TICKER = "ticker"
_SPACE_KEY = "space"
_NUMBER_KEY = "newest-gateway"
_SNAPSHOTS_KEY = "snapshots"

_SHARED_LIMITS = ("members", "sockets_per_member", "streams_per_member", "kept_payload_bytes")
"""The limits on which the shared state depends. All others each gateway checks for itself."""

log = logging.getLogger("mew_spaces")


class SpaceRecord(BaseModel):
    """The agreement of the gateways of a space. `config` has digests by section."""

    rules: int
    epoch: str
    config: dict[str, str]


@dataclass(frozen=True, slots=True)
class SharedStorageOptions:
    """Limits of a gateway among several. Times are in seconds."""

    renew_seconds: float = LEASE_SECONDS / 4
    unseen_seconds: float = LEASE_SECONDS
    """After how long a gateway of which no lease was ever seen counts as gone."""
    wait_seconds: float = 5.0
    """How long events wait for a backplane that is away before their senders learn that they were not stored."""
    start_seconds: float = 15.0
    """How long a gateway that starts waits for the backplane."""
    stop_seconds: float = 3.0
    """How long a gateway that stops waits for the others to learn of it."""
    queued_events: int = 10_000
    queued_bytes: int = 32 * 1024 * 1024
    snapshot_events: int = 5_000
    snapshot_bytes: int = 8 * 1024 * 1024
    """After how many events, or bytes of them, the state is kept for gateways that start."""


class SharedRecords:
    """The agreement, numbers and snapshots of one space in its backplane."""

    def __init__(self, backplane: Backplane, config: SpaceConfig, options: SharedStorageOptions) -> None:
        self._backplane = backplane
        self._config = config
        self._options = options
        self._unsaved_events = self._unsaved_bytes = 0
        """Events and bytes applied since this gateway last checked for a due snapshot."""

    async def open_space(self, begin: Callable[[], SpaceSnapshot]) -> SpaceRecord:
        """Return the record of the space. The first gateway writes it, with the state from `begin`.

        Returns a record with another configuration only if no other gateway runs; `change_space` then replaces it.
        Raises `SpacesError` if gateways run with another configuration, and `BackplaneUnavailable`.
        """
        while True:
            saved = await self._backplane.load(_SPACE_KEY)
            if saved is not None:
                record = _read_record(saved.value)
                await self._check_alone(record)
                return record
            first = begin()
            mine = SpaceRecord(rules=RULES_VERSION, epoch=first.epoch, config=shared_config(self._config))
            if await self._save_record(mine, first, expected=0):
                return mine

    async def begin_again(self, record: SpaceRecord, first: SpaceSnapshot) -> SpaceRecord:
        """Begin another epoch with the state `first`, because the batches of a record were lost. Returns its record.

        If another gateway changed the record meanwhile, returns that one. Raises `BackplaneUnavailable`.
        """
        saved = await self._backplane.load(_SPACE_KEY)
        if saved is not None and _read_record(saved.value) == record:
            mine = record.model_copy(update={"epoch": first.epoch})
            if await self._save_record(mine, first, expected=saved.revision):
                return mine
        return await self.open_space(lambda: first)

    async def _save_record(self, record: SpaceRecord, first: SpaceSnapshot, *, expected: int) -> bool:
        """Save a record with the state in which its epoch begins. Returns False if another gateway saved one."""
        try:
            if first.state != SpaceState() or first.sequence:
                packed = zlib.compress(first.model_dump_json().encode())
                await self._backplane.save(_first_key(record.epoch), packed, expected=0)
            await self._backplane.save(_SPACE_KEY, to_json(record), expected=expected)
        except Conflict:
            return False
        return True

    def differing(self, record: SpaceRecord) -> list[str]:
        """Return the sections of the configuration that differ from a record."""
        mine, theirs = shared_config(self._config), record.config
        return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))

    async def change_space(self, record: SpaceRecord, snapshot: SpaceSnapshot) -> None:
        """Make our configuration the space's. Earlier batches were decided with another one, so keep only the resulting
        state.

        Raises `SpacesError` if another gateway started meanwhile, and `BackplaneUnavailable`.
        """
        saved = await self._backplane.load(_SPACE_KEY)
        await self._check_alone(record)
        if saved is None or _read_record(saved.value) != record:
            raise SpacesError("another gateway changed the configuration of this space at the same time; start again")
        await self._save_snapshot(snapshot, kept=1)
        mine = record.model_copy(update={"config": shared_config(self._config)})
        try:
            await self._backplane.save(_SPACE_KEY, to_json(mine), expected=saved.revision)
        except Conflict as error:
            raise SpacesError(f"another gateway changed this space at the same time ({error}); start again") from None

    async def _check_alone(self, record: SpaceRecord) -> None:
        """Raise `SpacesError` if gateways run with another configuration, or have written other batches."""
        if record.rules != RULES_VERSION:
            problem = f"the backplane of this space holds batches of the rules {record.rules}"
            raise SpacesError(f"{problem}; this gateway knows {RULES_VERSION}; use the version that wrote them")
        differing = self.differing(record)
        if differing and await self._has_gateways():
            raise SpacesError(
                f"other gateways serve this space with another configuration ({', '.join(differing)}); use the same "
                "space.yaml and version everywhere, or stop all gateways before one starts with a new one"
            )

    async def take_number(self) -> int:
        """Return a number that no gateway of this space has used. Raises `BackplaneUnavailable`."""
        while True:
            saved = await self._backplane.load(_NUMBER_KEY)
            number = 1 if saved is None else _read_number(saved.value) + 1
            try:
                await self._backplane.save(_NUMBER_KEY, b"%d" % number, expected=0 if saved is None else saved.revision)
            except Conflict:
                continue
            return number

    async def load_snapshot(self, epoch: str, *, newest: bool = False) -> SpaceSnapshot:
        """Return the oldest snapshot that the kept batches continue, else the initial state of the space.

        Raises `HistoryLost` without a readable one, and `BackplaneUnavailable`.
        """
        first, _ = await self._backplane.bounds()
        saved = await self._backplane.load(_SNAPSHOTS_KEY)
        known = _read_numbers(saved)
        for batch in known[::-1] if newest else known:
            stored = await self._backplane.load(_snapshot_key(batch)) if batch >= first - 1 else None
            if stored is None:
                continue
            try:
                snapshot = await to_thread.run_sync(_read_snapshot, stored.value)
            except (ValueError, zlib.error):
                report_foreign("a snapshot")
                continue
            if (snapshot.batch, snapshot.epoch) == (batch, epoch):
                return snapshot
        if first > 1:
            raise HistoryLost("no snapshot of this space matches the batches that the backplane keeps")
        began = await self._backplane.load(_first_key(epoch))
        try:
            return SpaceSnapshot() if began is None else await to_thread.run_sync(_read_snapshot, began.value)
        except (ValueError, zlib.error):
            raise HistoryLost("the state with which this space began cannot be read") from None

    def note_applied(self, events: int, size: int) -> None:
        """Count applied events and their bytes, for the next snapshot."""
        self._unsaved_events += events
        self._unsaved_bytes += size

    async def keep_snapshots(self, snapshot: Callable[[], SpaceSnapshot | None]) -> None:
        """Save the result of `snapshot` after enough applied events, until cancelled.

        `snapshot` returns None if another gateway saves.
        """
        options = self._options
        while True:
            await anyio.sleep(options.renew_seconds)
            if self._unsaved_events >= options.snapshot_events or self._unsaved_bytes >= options.snapshot_bytes:
                self._unsaved_events = self._unsaved_bytes = 0
                if (due := snapshot()) is not None:
                    try:
                        await self._save_snapshot(due)
                    except BackplaneError as error:
                        log.warning("backplane: the state was not kept: %s", error)

    async def _save_snapshot(self, snapshot: SpaceSnapshot, *, kept: int = KEPT_SNAPSHOTS) -> None:
        """Save a snapshot, and remove the oldest ones with their batches.

        Raises `BackplaneUnavailable`.
        """
        batch, content = snapshot.batch, snapshot.model_dump_json().encode()  # now: the next batch changes it
        packed = await to_thread.run_sync(zlib.compress, content)
        there = await self._backplane.load(_snapshot_key(batch))
        saved = await self._backplane.load(_SNAPSHOTS_KEY)
        known = _read_numbers(saved)
        # Those with higher numbers are of batches that were lost.
        newest = sorted({*(one for one in known if one < batch), batch})[-kept:]
        try:
            await self._backplane.save(_snapshot_key(batch), packed, expected=0 if there is None else there.revision)
            revision = 0 if saved is None else saved.revision
            await self._backplane.save(_SNAPSHOTS_KEY, to_json(newest), expected=revision)
        except Conflict:
            return  # another gateway saves one
        for old in known:
            if old not in newest:
                await self._backplane.delete(_snapshot_key(old))
        await self._backplane.trim(newest[0] + 1)

    async def _has_gateways(self) -> bool:
        """Return whether any gateway of this space runs. Waits until a killed gateway's lease expires."""
        with anyio.move_on_after(self._backplane.stale_lease_seconds):
            async with aclosing(self._backplane.leases()) as changes:
                async for leases in changes:
                    if not any(name.startswith(_LEASE_PREFIX) for name in leases):
                        return False
        return True


class GatewayLeases:
    """The leases of a space's gateways, as seen by one of them."""

    def __init__(self, backplane: Backplane, *, unseen_seconds: float) -> None:
        """A gateway without a lease is gone after `unseen_seconds`."""
        self._backplane = backplane
        self._unseen_seconds = unseen_seconds
        self._leases: Mapping[str, bytes] | None = None
        self._seen: set[int] = set()
        self._unseen_since: dict[int, float] = {}
        self.is_ticker = False
        """Whether this gateway does the work that only one may do: it holds the lease `ticker`."""

    async def renew(self, gateway: int) -> None:
        """Renew the lease of this gateway. Raises `BackplaneError`."""
        await self._backplane.renew(f"{_LEASE_PREFIX}{gateway}", b"")

    async def claim_ticker(self, gateway: int) -> None:
        """Become or stay the ticker, unless another gateway is. Raises `BackplaneError`."""
        self.is_ticker = await self._backplane.claim(_TICKER, b"%d" % gateway)

    async def release(self, gateway: int) -> None:
        """End the leases of this gateway. Raises `BackplaneError`."""
        await self._backplane.release(f"{_LEASE_PREFIX}{gateway}")
        if self.is_ticker:
            self.is_ticker = False
            await self._backplane.release(_TICKER)

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Follow all leases until cancelled."""
        async with aclosing(self._backplane.leases()) as changes:
            async for leases in changes:
                self._leases = leases
                on_change()

    def gone(self, others: AbstractSet[int]) -> list[int]:
        """Return the other gateways that are gone, each once, and again if its connections remain for long."""
        if self._leases is None:
            return []
        now = anyio.current_time()
        present = {number for number in others if f"{_LEASE_PREFIX}{number}" in self._leases}
        self._seen = (self._seen & others) | present
        # The lease of an unseen gateway may come late, or ended before this gateway started.
        self._unseen_since = {number: self._unseen_since.get(number, now) for number in others - self._seen}
        late = {name for name, since in self._unseen_since.items() if now - since >= self._unseen_seconds}
        found = sorted((self._seen - present) | late)
        self._seen.difference_update(found)
        self._unseen_since.update(dict.fromkeys(found, now))
        return found


def _read_record(data: bytes) -> SpaceRecord:
    try:
        return SpaceRecord.model_validate_json(data)
    except ValidationError:
        text = "a newer version wrote it, or something else than a gateway; let gateways alone write to its servers"
        raise BackplaneRefused(f"the backplane's record of this space cannot be read: {text}") from None


def _read_number(data: bytes) -> int:
    """Read the newest gateway's number. Replace an unreadable one with an unused number."""
    if len(data) < _MAX_DIGITS and data.isdigit():
        return int(data)
    report_foreign("the number of the newest gateway")
    return _LOST_NUMBERS + secrets.randbelow(_LOST_NUMBERS)


def _read_numbers(saved: SavedValue | None) -> list[int]:
    """List the snapshots, oldest first."""
    try:
        return [] if saved is None else _NUMBERS.validate_json(saved.value)
    except ValidationError:
        report_foreign("the list of snapshots")
        return []


def _first_key(epoch: str) -> str:
    return f"first.{epoch}"


def _snapshot_key(batch: int) -> str:
    return f"snapshot.{batch}"


def _read_snapshot(packed: bytes) -> SpaceSnapshot:
    unpacked = zlib.decompressobj()
    content = unpacked.decompress(packed, MAX_SNAPSHOT_BYTES)
    if unpacked.unconsumed_tail or not unpacked.eof:
        raise ValueError("the snapshot is incomplete")
    return SpaceSnapshot.model_validate_json(content)


def shared_config(config: SpaceConfig) -> dict[str, str]:
    """Return digests, by section, of the parts of space.yaml that affect the shared state."""
    people = {
        name: (one.name, config.is_person(name), config.patterns_of(name)) for name, one in config.participants.items()
    }
    parts: dict[str, Any] = {
        "participants": people,
        "defaults": config.patterns_of(""),
        "capabilities": config.capabilities,
        "control": config.control,
        "limits": {name: getattr(config.limits, name) for name in _SHARED_LIMITS},
    }
    return {name: hashlib.sha256(to_json(part)).hexdigest()[:16] for name, part in parts.items()}
