"""Where a space's file is, from what was typed."""

from pathlib import Path

from mew_agent.errors import ConfigError
from spaces.auth import STATE_NAME

SPACE_FILE = "space.yaml"


def space_config_path(config: Path | None, folder: Path | None) -> Path:
    """The given file, else the space.yaml of the folder's `.mew`, else that of the folder. Raises `ConfigError`."""
    if config is not None:
        if not config.is_file():
            raise ConfigError(str(config), "there is no such file")
        return config
    base = folder or Path()
    for path in (base / STATE_NAME / SPACE_FILE, base / SPACE_FILE):
        if path.is_file():
            return path
    problem = f"there is no {SPACE_FILE} here; `mew init` makes one"
    raise ConfigError(str(base.resolve()), problem, "--config FILE or --space-dir FOLDER")


def space_folder(config_path: Path) -> Path:
    """The folder a space belongs to: where its file lies, or the one above when that is `.mew`."""
    folder = config_path.resolve().parent
    return folder.parent if folder.name == STATE_NAME else folder
