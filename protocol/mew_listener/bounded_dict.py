"""[pure] Collections with a limit: the newest entries, fair shares per owner, cached texts.

Owns the rule for shared limits: an owner above its own limit loses its oldest entry, and above the common limit, the
owner with the most loses one. So no owner can evict the entries of an owner with fewer.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from functools import wraps
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T", str, bytes)


class BoundedDict(OrderedDict[K, V]):
    """Keeps the `limit` entries set last; setting an entry again makes it the newest.

    A plain dict gets slow if its first key is deleted repeatedly, because each search for the first key passes all
    deleted places.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)


def cached_by_text(limit: int) -> Callable[[Callable[[T], V]], Callable[[T], V]]:
    """Cache the results of a function of one text, for texts with at most `limit` characters (or bytes) in total.

    `functools.lru_cache` only counts entries, but foreign texts can have any length. A text longer than the limit is
    not cached, and evicts no other.
    """

    def decorate(function: Callable[[T], V]) -> Callable[[T], V]:
        known: OrderedDict[T, V] = OrderedDict()
        size = 0

        @wraps(function)
        def call(text: T) -> V:
            nonlocal size
            if len(text) >= limit:
                return function(text)
            if text in known:
                known.move_to_end(text)
                return known[text]
            result = known[text] = function(text)
            size += len(text) + 1
            while size > limit:
                size -= len(known.popitem(last=False)[0]) + 1
            return result

        return call

    return decorate


class Shares(Generic[K]):
    """An ordered set of keys, oldest first, each with an owner and a weight. Finds the key to remove above a limit."""

    def __init__(self) -> None:
        self._owners: dict[K, tuple[Hashable, int]] = {}
        self._keys: dict[Hashable, OrderedDict[K, int]] = {}
        self._weights: dict[Hashable, int] = {}
        self._newest: Hashable = None
        self.weight = 0
        """The weight of all keys together."""

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[K]:
        return iter(self._owners)

    def __reversed__(self) -> Iterator[K]:
        return reversed(self._owners)

    def __contains__(self, key: object) -> bool:
        return key in self._owners

    def count(self, owner: Hashable) -> int:
        """Return how many keys an owner has."""
        return len(self._keys.get(owner, ()))

    def oldest(self, owner: Hashable) -> K | None:
        """Return the oldest key of an owner; None if it has none."""
        return next(iter(self._keys.get(owner, ())), None)

    def add(self, key: K, owner: Hashable, weight: int = 1) -> None:
        """Add a key as the newest; a known key changes its place, owner and weight."""
        if key in self._owners:
            self.discard(key)
        self._owners[key] = owner, weight
        self._keys.setdefault(owner, OrderedDict())[key] = weight
        self._weights[owner] = self._weights.get(owner, 0) + weight
        self._newest = owner
        self.weight += weight

    def discard(self, key: K) -> None:
        """Remove a key, if it is known."""
        known = self._owners.pop(key, None)
        if known is None:
            return
        owner, weight = known
        self.weight -= weight
        self._weights[owner] -= weight
        del self._keys[owner][key]
        if not self._keys[owner]:
            del self._keys[owner], self._weights[owner]

    def reweigh(self, key: K, weight: int) -> None:
        """Change the weight of a known key; it keeps its place."""
        owner, before = self._owners[key]
        self._owners[key] = owner, weight
        self._keys[owner][key] = weight
        self._weights[owner] += weight - before
        self.weight += weight - before

    def heaviest(self) -> Hashable | None:
        """Return the owner with the greatest weight; None without keys."""
        return max(self._weights, key=lambda owner: self._weights[owner], default=None)

    def weight_of(self, owner: Hashable) -> int:
        """Return the total weight of an owner's keys."""
        return self._weights.get(owner, 0)

    def clear(self) -> None:
        """Remove all keys."""
        self._owners.clear()
        self._keys.clear()
        self._weights.clear()
        self.weight = 0

    def surplus(self, limit: int, own_limit: int | None = None) -> K | None:
        """Return the key to remove; None if no limit is exceeded. Call it after each `add` until it returns None.

        `own_limit` is the number of keys of one owner: above it, the owner that added last loses its oldest. `limit` is
        the total weight of all keys: above it, the owner with the greatest weight loses its oldest; among equals, the
        one that added last, else the last by name. Takes time linear in the number of owners.
        """
        newest = self._newest
        if own_limit is not None and self.count(newest) > own_limit:
            return next(iter(self._keys[newest]))
        if self.weight <= limit:
            return None
        loser = max(self._weights, key=lambda owner: (self._weights[owner], owner == newest, str(owner)))
        return next(iter(self._keys[loser]))


WEIGHT_BYTES = 64 * 1024
"""A text counts for a limit as one entry for each such part that it begins; see `weight_of`."""


def weight_of(size: int) -> int:
    """Return the weight of an entry of this size (in bytes or characters) in a `FairDict`."""
    return 1 + size // WEIGHT_BYTES


class FairDict(MutableMapping[K, V]):
    """Keeps entries with a total weight of at most `limit`, in the order of their last setting.

    `Shares.surplus` chooses the entries to remove. `owner` returns an entry's owner, `weight` its weight (default: 1).
    `own_limit` is the number of entries of one owner.
    """

    def __init__(
        self,
        limit: int,
        owner: Callable[[K, V], Hashable],
        *,
        weight: Callable[[K, V], int] = lambda _key, _value: 1,
        own_limit: int | None = None,
    ) -> None:
        self._limit, self._owner, self._weight, self._own_limit = limit, owner, weight, own_limit
        self._values: dict[K, V] = {}
        self._shares: Shares[K] = Shares()

    def __getitem__(self, key: K) -> V:
        return self._values[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._values[key] = value
        self._shares.add(key, self._owner(key, value), self._weight(key, value))
        while (gone := self._shares.surplus(self._limit, self._own_limit)) is not None:
            del self[gone]

    def __delitem__(self, key: K) -> None:
        del self._values[key]
        self._shares.discard(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._shares)

    def __reversed__(self) -> Iterator[K]:
        return reversed(self._shares)

    def __len__(self) -> int:
        return len(self._values)
