"""Whether the command prints hints, warnings and progress. `terminal` obeys; `--help` imports only this."""

from dataclasses import dataclass
from typing import Final


@dataclass
class Quiet:
    """The option `--quiet` of the command that runs."""

    is_on: bool = False


QUIET: Final = Quiet()
