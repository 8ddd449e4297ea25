"""[pure] What can go wrong on the gateway's side of the house, before and beside the wire.

    SpacesError
    ├── SpaceConfigError   space.yaml cannot be read as what it should be: where, what, what was expected
    ├── TokenError         tokens that do not name exactly one participant, or cannot be stored
    └── PortInUse          somebody else listens on the port

What a peer does wrong is not here but in `mew_protocol.errors`.
"""

from dataclasses import dataclass
from pathlib import Path


class SpacesError(Exception):
    """Base of the errors this package raises to its callers."""


@dataclass(eq=False)
class SpaceConfigError(SpacesError):
    """`file:line:column: what`, with 1-based line and column where the place is known."""

    path: Path
    problem: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = f"{self.path}" if self.line is None else f"{self.path}:{self.line}:{self.column}"
        return f"{place}: {self.problem}"


class TokenError(SpacesError):
    """Tokens that cannot be used: shared by two participants, empty, unreadable or not storable."""


@dataclass(eq=False)
class PortInUse(SpacesError):
    """The gateway's port is taken by another program."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"port {self.port} is taken by another program; use --port, or `mew down` if it is an older space"
