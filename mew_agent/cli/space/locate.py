"""Where a space's file is, from what was typed, and where in it a setting stands."""

from pathlib import Path

from mew_spaces.config.loading import place_in
from mew_spaces.gateway import auth

from mew_agent.errors import ConfigError

SPACE_FILE = "space.yaml"


def space_config_path(config: Path | None, folder: Path | None) -> Path:
    """The given file, else the space.yaml of the folder's `.mew`, else that of the folder. Raises `ConfigError`."""
    if config is not None:
        if not config.is_file():
            raise ConfigError(str(config), "there is no such file")
        return config
    base = folder or Path()
    for path in (base / auth.STATE_NAME / SPACE_FILE, base / SPACE_FILE):
        if path.is_file():
            return path
    problem = f"there is no {SPACE_FILE} here; `mew init` makes one"
    raise ConfigError(str(base.resolve()), problem, "--config FILE or --space-dir FOLDER")


def space_folder(config_path: Path) -> Path:
    """The folder a space belongs to: where its file lies, or the one above when that is `.mew`."""
    return auth.space_folder(auth.state_dir(config_path.resolve()))


def place_of(path: Path, name: str, *keys: str, at: str | None = None) -> str:
    """Where a participant's setting stands, by line and by name; `at` is a key within it, which the error names."""
    exact = () if at is None else (at,)
    return f"{place_in(path, ('participants', name, *keys, *exact))}: {'.'.join(('participants', name, *keys))}"
