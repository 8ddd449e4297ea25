"""[pure] Capabilities given while a space runs: cumulative, named by their grant, gone with their recipient.

Knows nothing of who may grant; that is `delegation`'s business.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mew_protocol.capability import is_same_value
from mew_protocol.patterns import Undecidable

Pattern = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grant:
    """One grant. It goes by the id of its envelope and by the `grant_id` it may have been given."""

    names: frozenset[str]
    granter: str
    patterns: tuple[dict[str, Any], ...]


class Grants:
    """The grants of one space, by recipient, oldest first."""

    def __init__(self) -> None:
        self._held: dict[str, list[Grant]] = {}

    def of(self, recipient: str) -> tuple[dict[str, Any], ...]:
        """Every pattern somebody was granted, oldest first."""
        return tuple(pattern for grant in self._held.get(recipient, ()) for pattern in grant.patterns)

    def add(self, recipient: str, grant: Grant) -> None:
        """Give more. What was given before stays."""
        self._held.setdefault(recipient, []).append(grant)

    def revoke(self, recipient: str, *, grant_id: str | None = None, patterns: Iterable[Pattern] = ()) -> list[Pattern]:
        """Take back a whole grant, or every granted pattern equal to one of these. Returns what was taken."""
        unwanted = tuple(patterns)
        taken: list[Pattern] = []
        kept: list[Grant] = []
        for grant in self._held.get(recipient, ()):
            named = grant_id is not None and grant_id in grant.names
            gone = [one for one in grant.patterns if named or any(_is_same(one, other) for other in unwanted)]
            rest = tuple(one for one in grant.patterns if not any(one is other for other in gone))
            taken += gone
            if rest:
                kept.append(Grant(grant.names, grant.granter, rest))
        if kept:
            self._held[recipient] = kept
        else:
            self._held.pop(recipient, None)
        return taken

    def forget(self, recipient: str) -> bool:
        """Drop everything somebody was granted. Returns whether there was anything."""
        return self._held.pop(recipient, None) is not None


def _is_same(pattern: Pattern, other: Pattern) -> bool:
    try:
        return is_same_value(dict(pattern), dict(other))
    except (Undecidable, RecursionError):
        return False
