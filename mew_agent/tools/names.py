"""[pure] Names under which a model calls tools: those of peers, one for each (peer, tool), and back; and our own.

Model servers take `[a-zA-Z0-9_-]{1,64}`. Owns the mapping; a name follows from peer and tool alone, whoever else is
there, so that an agent that restarts offers the same names.
"""

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

MAX_NAME_LENGTH: Final = 64
SEPARATOR: Final = "__"

_PLAIN: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*")
_ACCEPTED: Final = re.compile(r"[a-zA-Z0-9_-]+")
_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9-]+")
_DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Target:
    """A tool of a peer."""

    peer: str
    tool: str


def plain_name(target: Target) -> str | None:
    """`peer__tool`, where that can be read back at its first separator; else None."""
    name = f"{target.peer}{SEPARATOR}{target.tool}"
    # A peer that ends with the separator's character would move it.
    readable = target.tool and SEPARATOR not in target.peer and not target.peer.endswith("_")
    return name if readable and len(name) <= MAX_NAME_LENGTH and _PLAIN.fullmatch(name) else None


def marked_name(target: Target) -> str:
    """A name for any target: what can be kept of both, and a digest of both. It holds no separator, so it is no plain
    name of anything.
    """
    identity = f"{len(target.peer)}:{target.peer}{target.tool}".encode(errors="surrogatepass")
    digest = hashlib.blake2b(identity, digest_size=_DIGEST_BYTES).hexdigest()
    kept = _FOREIGN.sub("_", f"t_{target.peer}_{target.tool}")[: MAX_NAME_LENGTH - len(digest) - 1].rstrip("_")
    return f"{kept}_{digest}"


def own_name(tool: str) -> str:
    """The name of a function of our own: as it is, where model servers take that."""
    fits = len(tool) <= MAX_NAME_LENGTH and _ACCEPTED.fullmatch(tool)
    return tool if fits else marked_name(Target("", tool))


@dataclass
class ToolNames:
    """All names given so far, so that a call of a tool that is gone is still understood."""

    _targets: dict[str, Target] = field(default_factory=dict)

    def name_of(self, target: Target, reserved: Collection[str] = ()) -> str:
        """The one name of a target. `reserved` are names that mean something else here."""
        name = plain_name(target)
        if name is None or name in reserved:
            name = marked_name(target)
        self._targets[name] = target
        return name

    def target_of(self, name: str) -> Target | None:
        """What a name means; None for names never given."""
        return self._targets.get(name)
