"""`mew space clean`: away with what a space wrote; never with what somebody wrote for it.

Owns what belongs to which sort. space.yaml, agents/ and everything outside the space's own folders stay.
"""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from mew_spaces.gateway.auth import state_dir
from mew_spaces.launch.run_file import run_file_path

from mew_agent.cli.app import terminal
from mew_agent.cli.remote.identity import find_run
from mew_agent.cli.space.locate import space_config_path, space_folder
from mew_agent.errors import ConfigError

_KEPT = ".gitignore"


@dataclass(frozen=True, slots=True)
class Sorts:
    """What to clean. Neither means logs and FIFOs; `everything` adds tokens, conversations and the run file."""

    logs: bool = False
    fifos: bool = False
    everything: bool = False


def clean(folder: Path | None, sorts: Sorts, *, force: bool, dry_run: bool) -> int:
    """Remove files, or name them. Returns the exit code; raises `ConfigError` where that would do harm."""
    config = space_config_path(None, folder)
    place, state = space_folder(config), state_dir(config)
    found = find_run(place)
    runs = found is not None and found[1].is_alive
    doomed = list(_files(place, state, sorts))
    if dry_run:
        for path in doomed:
            terminal.say(f"would {'empty' if runs else 'remove'} {_near(path, place)}")
        terminal.say(_count(doomed, "to clean"))
        return terminal.DONE
    if runs and sorts.everything:
        raise ConfigError(str(place), "the space runs; stop it with `mew down` before --all")
    if runs and not force:
        raise ConfigError(str(place), "the space runs; --force empties its logs, FIFOs stay")
    if doomed and sorts.everything and not force and not _confirmed(doomed):
        return terminal.DONE
    cleaned = [path for path in doomed if _away(path, runs=runs)]
    terminal.say(_count(cleaned, "cleaned"))
    return terminal.DONE


def _files(place: Path, state: Path, sorts: Sorts) -> Iterator[Path]:
    neither = not (sorts.logs or sorts.fifos or sorts.everything)
    if sorts.logs or sorts.everything or neither:
        for folder in (place / "logs", state / "logs"):
            yield from _below(folder, "*.log*", "*.jsonl*")
    if sorts.fifos or sorts.everything or neither:
        for folder in (place / "fifos", state / "fifos"):
            yield from (path for path in _below(folder, "*") if stat.S_ISFIFO(path.lstat().st_mode))
    if sorts.everything:
        yield from _below(state / "sessions", "*")
        yield from _below(state / "tokens", "*.token")
        yield from (path for path in (run_file_path(state),) if path.exists())


def _below(folder: Path, *patterns: str) -> Iterator[Path]:
    """Files directly in a folder. A link is removed as itself, never followed."""
    paths = {path for pattern in patterns for path in folder.glob(pattern)}
    yield from sorted(path for path in paths if not (path.is_dir() and not path.is_symlink()) and path.name != _KEPT)


def _away(path: Path, *, runs: bool) -> bool:
    """A file that a running program writes is emptied, since it would go on with one that nobody sees."""
    if not runs:
        path.unlink(missing_ok=True)
    elif path.is_file() and not path.is_symlink():
        path.open("w").close()
    else:
        return False
    return True


def _confirmed(doomed: list[Path]) -> bool:
    import sys

    if not terminal.is_terminal(sys.stdin):
        raise ConfigError("--all", "removes tokens and conversations", "--force, where nobody can be asked")
    return bool(typer.confirm(f"Remove {len(doomed)} files, tokens and conversations among them?"))


def _near(path: Path, place: Path) -> str:
    try:
        return str(path.relative_to(place))
    except ValueError:
        return str(path)


def _count(paths: list[Path], what: str) -> str:
    return f"{len(paths)} file{'' if len(paths) == 1 else 's'} {what}" if paths else "nothing to clean"
