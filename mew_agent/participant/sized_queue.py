"""A queue for one reader, bounded by number and size.

Owns the limits. Peers choose the sizes of messages, so a number alone does not limit memory.
"""

from collections import deque
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")


class SizedQueue(Generic[T]):
    """Items in order, until `close`. An empty queue accepts an item of any size."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items, self._max_bytes = max_items, max_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._is_closed = False
        self._filled, self._emptied = anyio.Event(), anyio.Event()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_full(self) -> bool:
        """True if the queue accepts no further item."""
        return len(self._items) >= self._max_items or self._bytes >= self._max_bytes

    def put_nowait(self, item: T, size_bytes: int = 0) -> None:
        """Add an item, even to a full queue."""
        self._items.append((item, size_bytes))
        self._bytes += size_bytes
        self._filled.set()

    async def put(self, item: T, size_bytes: int = 0) -> None:
        """Wait for room, then add an item."""
        while self.is_full:
            if self._emptied.is_set():
                self._emptied = anyio.Event()
            await self._emptied.wait()
        self.put_nowait(item, size_bytes)

    def close(self) -> None:
        """Let the reader end after the last item."""
        self._is_closed = True
        self._filled.set()

    def __aiter__(self) -> "SizedQueue[T]":
        return self

    async def __anext__(self) -> T:
        await anyio.lowlevel.checkpoint()
        while not self._items:
            if self._is_closed:
                raise StopAsyncIteration
            self._filled = anyio.Event()
            await self._filled.wait()
        item, size_bytes = self._items.popleft()
        self._bytes -= size_bytes
        self._emptied.set()
        return item
