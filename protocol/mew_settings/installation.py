"""The command that adds an extra of mew-agent to this environment, as the program was installed into it."""

import json
import sys
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

SPACE_PACKAGE: Final = "confusable_homoglyphs"
"""A package that only the extra `space` brings."""


def install_command(extra: str) -> str:
    """Return the command for uv, pipx, a clone, or else pip."""
    home, package = Path(sys.prefix), f"'mew-agent[{extra}]'"
    if (home / "uv-receipt.toml").exists():
        return f"uv tool install {package}"
    if (home / "pipx_metadata.json").exists():
        return f"pipx install --force {package}"
    if (clone := _clone()) is not None:
        package = f"-e '{clone}[{extra}]'"
    try:
        made_by_uv = "uv = " in (home / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:  # not a virtual environment
        made_by_uv = False
    if made_by_uv:
        return f"uv pip install --python {sys.executable} {package}"
    return f"{sys.executable} -m pip install {package}" if clone is not None else f"pip install {package}"


def _clone() -> Path | None:
    """Return the folder of the source code if the package is installed as editable from there."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import

    try:
        origin = json.loads(distribution("mew-agent").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None
    is_editable = origin.get("dir_info", {}).get("editable", False)
    return Path(unquote(urlsplit(origin["url"]).path)) if is_editable else None
