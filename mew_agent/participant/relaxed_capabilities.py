"""[pure] Capabilities without what they say of arguments: whether some call of a tool could be allowed at all.

Before a model has chosen arguments, the one matcher can only be asked about a call without any, which a capability for
certain arguments does not cover. Each call itself is still decided by what we really hold.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from mew_protocol.capability import CapabilityPattern, CapabilitySet

CHOSEN: Final = ("arguments", "uri")
"""What whoever makes the call chooses: the arguments of a tool, which of a peer's resources."""


def loosened(patterns: Iterable[CapabilityPattern]) -> CapabilitySet:
    """The same patterns, with everything left out that only the chosen parts of a request could fulfil."""
    return CapabilitySet(
        {**pattern, "payload": _loose(pattern["payload"])} if "payload" in pattern else pattern for pattern in patterns
    )


def _loose(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _loose(inside) for key, inside in value.items() if not _may_reach(str(key))}
    if isinstance(value, list | tuple):
        return [_loose(one) for one in value]
    return value


def _may_reach(key: str) -> bool:
    """Whether what stands under a key (plain, a glob, `**`, or a JSONPath) could be among the chosen parts."""
    if key.startswith("$"):
        return ".." in key or "*" in key or any(name in key for name in CHOSEN)
    return any(fnmatchcase(name, key) for name in CHOSEN)
