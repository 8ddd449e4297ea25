"""[pure] Map tools to names that model servers accept (`[a-zA-Z0-9_-]{1,64}`), and back."""

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from mew_protocol.bounded_dict import FairDict

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
    """Return `peer__tool` if its first separator divides it unambiguously, else None."""
    name = f"{target.peer}{SEPARATOR}{target.tool}"
    # A peer whose name ends with an underscore would move the separator.
    readable = target.tool and SEPARATOR not in target.peer and not target.peer.endswith("_")
    return name if readable and len(name) <= MAX_NAME_LENGTH and _PLAIN.fullmatch(name) else None


def digest_name(target: Target) -> str:
    """Return a name for any target: the accepted characters of peer and tool, and a digest of both."""
    # The digest keeps targets apart whose accepted characters are alike. Without a separator it equals no plain name.
    identity = f"{len(target.peer)}:{target.peer}{target.tool}".encode(errors="surrogatepass")
    digest = hashlib.blake2b(identity, digest_size=_DIGEST_BYTES).hexdigest()
    kept = _FOREIGN.sub("_", f"t_{target.peer}_{target.tool}")[: MAX_NAME_LENGTH - len(digest) - 1].rstrip("_")
    return f"{kept}_{digest}"


def own_name(tool: str) -> str:
    """Return the name of one of our own functions: unchanged if model servers accept it, else a digest name."""
    fits = len(tool) <= MAX_NAME_LENGTH and _ACCEPTED.fullmatch(tool)
    return tool if fits else digest_name(Target("", tool))


MAX_NAMES: Final = 20_000
"""How many names are remembered; the peer with the most loses its oldest."""


@dataclass
class ToolNames:
    """The names assigned so far, so that a call of a withdrawn tool is still understood."""

    _targets: FairDict[str, Target] = field(default_factory=lambda: FairDict(MAX_NAMES, lambda _, one: one.peer))

    def name_of(self, target: Target, reserved: Collection[str] = ()) -> str:
        """Return the name of a target. `reserved` names are already used for other tools."""
        name = plain_name(target)
        if name is None or name in reserved:
            name = digest_name(target)
        self._targets[name] = target
        return name

    def target_of(self, name: str) -> Target | None:
        """Return the target of a name; None for names never assigned."""
        return self._targets.get(name)
