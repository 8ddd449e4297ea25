"""Announces changes that arrive quickly one after the other: each once, after a short delay."""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

import anyio

UPDATE_SECONDS: Final = 0.2
"""Changes within this time are announced once."""

MAX_CHANGES: Final = 1_000
"""How many changes are announced together before those that can be spared are dropped."""

Change = TypeVar("Change", bound=Hashable)


class CollectedChanges(Generic[Change]):
    """Collects changes while `run` announces the earlier ones."""

    def __init__(self, announce: Callable[[Sequence[Change]], Awaitable[None]]) -> None:
        self._announce = announce
        self._changed: dict[Change, None] = {}
        self._wake = anyio.Event()

    def add(self, change: Change, *, can_be_spared: bool = False) -> None:
        """Announce a change soon."""
        if not can_be_spared or len(self._changed) < MAX_CHANGES:
            self._changed[change] = None
        self._wake.set()

    async def run(self) -> None:
        """Announce changes until cancelled."""
        while True:
            await self._wake.wait()
            await anyio.sleep(UPDATE_SECONDS)
            self._wake = anyio.Event()
            changed, self._changed = self._changed, {}
            await self._announce(tuple(changed))
