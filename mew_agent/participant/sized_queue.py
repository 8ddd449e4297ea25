"""A queue for one reader, bounded by number and size.

Owns the bounds. Others choose how large a message is, so a number alone bounds no memory.
"""

from collections import deque
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")


class SizedQueue(Generic[T]):
    """Items in their order, until `close`. One item of any size has room in an empty queue."""

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
        """True if no further item has room."""
        return len(self._items) >= self._max_items or self._bytes >= self._max_bytes

    def put_nowait(self, item: T, size_bytes: int = 0) -> None:
        """Add an item, even to a full queue."""
        self._items.append((item, size_bytes))
        self._bytes += size_bytes
        self._filled.set()

    async def put(self, item: T, size_bytes: int = 0) -> None:
        """Add an item as soon as it has room."""
        while self.is_full:
            if self._emptied.is_set():
                self._emptied = anyio.Event()
            await self._emptied.wait()
        self.put_nowait(item, size_bytes)

    def close(self) -> None:
        """Let the reader end once it has everything that was added."""
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
