"""Check for the packages of an extra. Raises an error with the command that installs them."""

from importlib.util import find_spec
from typing import Final

from mew_settings.installation import SPACE_PACKAGE, install_command

from mew_agent.errors import MissingExtra

_PACKAGES: Final = {"mcp": "mcp_types", "local": "xllamacpp", "space": SPACE_PACKAGE, "otel": "opentelemetry"}
"""The packages of extras that have another name. `mcp_types` is absent next to `mcp` 1, which other libraries need."""


def has_extra(extra: str) -> bool:
    """Return True if the package of an extra is installed."""
    return find_spec(_PACKAGES.get(extra, extra)) is not None


def require_extra(extra: str, needs_it: str) -> None:
    """Raise `MissingExtra` unless the package of an extra is installed."""
    if not has_extra(extra):
        raise MissingExtra(needs_it, f"'{extra}'", install_command(extra))
