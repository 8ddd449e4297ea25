"""Check for the packages of an extra. Raises an error with the command that installs them."""

from importlib.util import find_spec

from mew_settings.installation import SPACE_PACKAGE, install_command

from mew_agent.errors import MissingExtra


def has_extra(extra: str, package: str | None = None) -> bool:
    """Return True if a package that only this extra installs is present (default: the package named like the extra)."""
    return find_spec(SPACE_PACKAGE if extra == "space" else package or extra) is not None


def require_extra(extra: str, needs_it: str, package: str | None = None) -> None:
    """Raise `MissingExtra` unless the package of an extra is installed; see `has_extra`."""
    if not has_extra(extra, package):
        raise MissingExtra(needs_it, f"'{extra}'", install_command(extra))
