"""[pure] A dict of the newest entries, for everything that is remembered up to a limit."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """Keeps the `limit` entries that were set last; setting an entry again makes it the newest.

    A plain dict whose first key is deleted again and again gets slow: each search for the first key passes over all
    places that deleted keys have left.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)
