"""[pure] The errors that this package raises to its callers.

    SpacesError
    ├── SpaceConfigError   space.yaml is invalid: where, what, and what was expected
    ├── TokenError         a token is empty, shared, unreadable or cannot be stored
    ├── PortInUse          another program listens on the port
    └── BackplaneError     the shared storage of several gateways failed; see `gateway.storage`

Errors in received messages are in `mew_protocol.errors`.
"""

from dataclasses import dataclass
from pathlib import Path


class SpacesError(Exception):
    """Base of the errors of this package."""


@dataclass(eq=False)
class SpaceConfigError(SpacesError):
    """An invalid space.yaml: `file:line:column: problem`. Line and column start at 1; they are None if unknown."""

    path: Path
    problem: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = f"{self.path}" if self.line is None else f"{self.path}:{self.line}:{self.column}"
        return f"{place}: {self.problem}"


class TokenError(SpacesError):
    """A token that cannot be used: empty, shared by two participants, unreadable or not storable."""

    passes = False
    """Whether the file could not be read because the process has nothing left to open it with."""


@dataclass(eq=False)
class PortInUse(SpacesError):
    """Another program listens on the port of the gateway."""

    host: str
    port: int

    def __str__(self) -> str:
        hint = "choose another with --port, or stop an older space with `mew down`"
        return f"port {self.port} is in use by another program; {hint}"
