"""The command that adds an extra or a package to this environment, depending on how mew-agent was installed."""

import json
import sys
from pathlib import Path
from shlex import quote
from typing import Final
from urllib.parse import unquote, urlsplit

SPACE_PACKAGE: Final = "confusable_homoglyphs"
"""A package that only the extra `space` brings."""


def install_command(extra: str) -> str:
    """Return the command for uv, pipx, a clone, or else pip."""
    home, package = Path(sys.prefix), f"'mew-agent[{extra}]'"
    if _is_uv_tool(home):
        return f"uv tool install {package}"
    if _is_pipx(home):
        return f"pipx install --force {package}"
    if (clone := _clone()) is not None:
        package = f"-e {quote(f'{clone}[{extra}]')}"
    return f"{_pip(home)} {package}"


def package_command(package: str) -> str:
    """Return the command that adds one package to this environment, without its dependencies."""
    home = Path(sys.prefix)
    if _is_pipx(home):
        return f"pipx runpip mew-agent install --no-deps {package}"
    return f"{_pip(home)} --no-deps {package}"


def _is_uv_tool(home: Path) -> bool:
    return (home / "uv-receipt.toml").exists()


def _is_pipx(home: Path) -> bool:
    return (home / "pipx_metadata.json").exists()


def _pip(home: Path) -> str:
    """Return the pip command for this environment; environments made by uv have no own pip."""
    python = quote(sys.executable)  # the `pip` of the shell may belong to another environment
    try:
        made_by_uv = "uv = " in (home / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:  # not a virtual environment
        made_by_uv = False
    if made_by_uv or _is_uv_tool(home):
        return f"uv pip install --python {python}"
    return f"{python} -m pip install"


def _clone() -> Path | None:
    """Return the source folder if the package is an editable installation."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import

    try:
        origin = json.loads(distribution("mew-agent").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None
    is_editable = origin.get("dir_info", {}).get("editable", False)
    return Path(unquote(urlsplit(origin["url"]).path)) if is_editable else None
