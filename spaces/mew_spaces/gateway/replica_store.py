"""What the gateways of one space keep in the backplane beside the batches: what they agree on, numbers, snapshots.

The record of the space names its epoch and what of space.yaml the shared state depends on: gateways that differ in
that would decide differently, so a gateway with another configuration joins no others. Applies nothing.
"""

import hashlib
import json
import logging
import secrets
import zlib
from collections.abc import Mapping
from typing import Any

from anyio import to_thread
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from mew_spaces.backplane.interface import Backplane, Conflict, HistoryLost
from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.events import RULES_VERSION
from mew_spaces.core.replicated_space import ReplicaSnapshot
from mew_spaces.errors import SpacesError

LEASE_PREFIX = "gateway."
TICKER_LEASE = "ticker"

KEPT_SNAPSHOTS = 3
"""A gateway that starts begins with the oldest, so that its own history reaches back."""

_SPACE_KEY = "space"
_NUMBER_KEY = "newest-gateway"
_SNAPSHOTS_KEY = "snapshots"

_SHARED_LIMITS = (
    "members",
    "sockets_per_member",
    "streams_per_member",
    "grants_per_member",
    "kept_payload_bytes",
    "name_chars",
)
"""The limits on which the shared state depends. All others each gateway checks for itself."""

log = logging.getLogger("spaces")


class SpaceRecord(BaseModel):
    """What the gateways of a space agree on. `config` holds digests by section."""

    rules: int
    epoch: str
    config: dict[str, str]


class ReplicaStore:
    """The backplane of one space, as a place for what must be agreed on."""

    def __init__(self, backplane: Backplane, config: SpaceConfig) -> None:
        self._backplane = backplane
        self._config = config

    async def open_space(self) -> SpaceRecord:
        """Return the record of the space; the first gateway writes it.

        Raises `SpacesError` if other gateways hold the space with another configuration, and `BackplaneUnavailable`.
        """
        mine = SpaceRecord(rules=RULES_VERSION, epoch=secrets.token_hex(4), config=shared_config(self._config))
        while True:
            saved = await self._backplane.load(_SPACE_KEY)
            try:
                if saved is None:
                    await self._backplane.save(_SPACE_KEY, to_json(mine), expected=0)
                    return mine
                try:
                    record = SpaceRecord.model_validate_json(saved.value)
                except ValidationError:
                    raise SpacesError(
                        "the backplane holds this space in a form that this version cannot read"
                    ) from None
                differing = _differing(record, mine)
                if not differing:
                    return record
                if record.rules != mine.rules or await self._gateways():
                    raise SpacesError(
                        f"other gateways hold this space with another configuration ({', '.join(differing)}); use the "
                        "same space.yaml and version everywhere, or stop all gateways before one starts with a new one"
                    )
                log.warning("the configuration of this space changed (%s): no other gateway runs", ", ".join(differing))
                changed = record.model_copy(update={"config": mine.config})
                await self._backplane.save(_SPACE_KEY, to_json(changed), expected=saved.revision)
                return changed
            except Conflict:
                continue

    async def take_number(self) -> int:
        """Return a number that no other gateway of this space has had. Raises `BackplaneUnavailable`."""
        while True:
            saved = await self._backplane.load(_NUMBER_KEY)
            number = 1 if saved is None else int(saved.value) + 1
            try:
                await self._backplane.save(_NUMBER_KEY, b"%d" % number, expected=0 if saved is None else saved.revision)
            except Conflict:
                continue
            return number

    async def oldest_snapshot(self) -> ReplicaSnapshot | None:
        """Return the oldest snapshot from which the kept batches go on; None if they go on from the very beginning.

        Raises `HistoryLost` if there is neither, and `BackplaneUnavailable`.
        """
        first, _ = await self._backplane.bounds()
        saved = await self._backplane.load(_SNAPSHOTS_KEY)
        for batch in [] if saved is None else json.loads(saved.value):
            stored = await self._backplane.load(_snapshot_key(batch)) if batch >= first - 1 else None
            if stored is not None:
                return await to_thread.run_sync(_read_snapshot, stored.value)
        if first > 1:
            raise HistoryLost("no snapshot of this space goes on with the batches that the backplane keeps")
        return None

    async def save_snapshot(self, batch: int, snapshot: bytes) -> None:
        """Keep a snapshot as of a batch, and remove the oldest ones with the batches that only they need.

        Raises `BackplaneUnavailable`.
        """
        packed = await to_thread.run_sync(zlib.compress, snapshot)
        try:
            await self._backplane.save(_snapshot_key(batch), packed, expected=0)
            saved = await self._backplane.load(_SNAPSHOTS_KEY)
            known = [] if saved is None else json.loads(saved.value)
            kept = sorted({*known, batch})[-KEPT_SNAPSHOTS:]
            revision = 0 if saved is None else saved.revision
            await self._backplane.save(_SNAPSHOTS_KEY, to_json(kept), expected=revision)
        except Conflict:
            return  # another gateway keeps one
        for old in known:
            if old not in kept:
                await self._backplane.delete(_snapshot_key(old))
        await self._backplane.trim(kept[0] + 1)

    async def _gateways(self) -> bool:
        """Return whether any gateway of this space runs."""
        generator = self._backplane.leases()
        try:
            leases: Mapping[str, bytes] = await anext(generator)
        finally:
            await generator.aclose()
        return any(name.startswith(LEASE_PREFIX) for name in leases)


def _snapshot_key(batch: int) -> str:
    return f"snapshot.{batch}"


def _read_snapshot(packed: bytes) -> ReplicaSnapshot:
    return ReplicaSnapshot.model_validate_json(zlib.decompress(packed))


def shared_config(config: SpaceConfig) -> dict[str, str]:
    """Return digests of what of space.yaml the shared state depends on, by its section."""
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


def _differing(record: SpaceRecord, mine: SpaceRecord) -> list[str]:
    rules = [] if record.rules == mine.rules else ["version"]
    sections = record.config.keys() | mine.config.keys()
    return rules + sorted(name for name in sections if record.config.get(name) != mine.config.get(name))
