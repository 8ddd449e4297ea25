"""`mew clean`: removes files of past runs of a space, never a person's own files.

Selects the files. Keeps space.yaml, agents/ and everything outside the space's own folders.
"""

import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from mew_board import words
from mew_spaces.gateway.auth import state_dir
from mew_spaces.launch.run_file import LAST_RUN_FILE_NAME, PIDS_FILE_NAME, RUN_FILE_NAME

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import find_run, relative_to, space_config_path, space_folder
from mew_agent.cli.app.options import FolderOption, option
from mew_agent.errors import ConfigError

_KEPT = ".gitignore"


@dataclass(frozen=True, slots=True)
class CleanSelection:
    """The files to remove. Without `logs`, `fifos` or `everything`, selects logs and FIFOs."""

    logs: Annotated[bool, option("--logs", "Remove logs only.")] = False
    fifos: Annotated[bool, option("--fifos", "Remove FIFOs only.")] = False
    everything: Annotated[bool, option("--all", "Remove tokens, history and conversations too.")] = False


def clean(
    selection: CleanSelection,
    *,
    force: Annotated[bool, option("--force", "Do not ask; empty the logs of a running space.")] = False,
    dry_run: Annotated[bool, option("--dry-run", "List the files without removing them.")] = False,
    space_dir: FolderOption = None,
) -> None:
    """Remove the logs and FIFOs of past runs.

    Keeps space.yaml and agents/.
    """
    config = space_config_path(None, space_dir)
    folder, state = space_folder(config), state_dir(config)
    found = find_run(folder)
    is_running = found is not None and found[1].is_alive
    files = list(_files(folder, state, selection))
    if not dry_run:
        if is_running:
            _refuse_running(folder, selection, force=force)
        if files and selection.everything and not force and not _is_confirmed(files):
            return
        files = [path for path in files if _remove(path, is_running=is_running)]
    names = [relative_to(folder, path) for path in files]
    lines = _report(names, "empty" if is_running else "remove", dry_run=dry_run)
    terminal.print_outcome("\n".join(lines), {"files": names, "dry_run": dry_run})


def _report(names: list[str], verb: str, *, dry_run: bool) -> list[str]:
    if not names:
        return ["nothing to clean"]
    count = words.count_of(len(names), "file")
    return [*(f"would {verb} {name}" for name in names), f"{count} to clean"] if dry_run else [f"{count} cleaned"]


def _refuse_running(folder: Path, selection: CleanSelection, *, force: bool) -> None:
    if selection.everything:
        raise ConfigError(str(folder), "the space is running; stop it with `mew down` before --all")
    if not force:
        raise ConfigError(str(folder), "the space is running; --force empties its logs and keeps its FIFOs")


def _files(folder: Path, state: Path, selection: CleanSelection) -> Iterator[Path]:
    if selection.logs or selection.everything or not selection.fifos:
        for place in (folder / "logs", state / "logs"):
            yield from _files_in(place, "*.log*", "*.jsonl*")
    if selection.fifos or selection.everything or not selection.logs:
        yield from filter(_is_fifo, (*_files_in(folder / "fifos", "*"), *_files_in(state / "fifos", "*")))
    if selection.everything:
        yield from _files_in(state / "sessions", "*")
        yield from _files_in(state / "tokens", "*.token", "*.token.expires")
        yield from _files_in(state, "history-*.sqlite3*")
        yield from _files_in(state, RUN_FILE_NAME, PIDS_FILE_NAME, LAST_RUN_FILE_NAME)


def _files_in(folder: Path, *patterns: str) -> Iterator[Path]:
    """Yield the files directly in a folder. A link counts as a file and is never followed."""
    paths = {path for pattern in patterns for path in folder.glob(pattern)}
    yield from sorted(path for path in paths if not (path.is_dir() and not path.is_symlink()) and path.name != _KEPT)


def _is_fifo(path: Path) -> bool:
    return stat.S_ISFIFO(path.lstat().st_mode)


def _remove(path: Path, *, is_running: bool) -> bool:
    """Remove a file, or empty it while programs run, because they would keep writing to a removed file."""
    if not is_running:
        path.unlink(missing_ok=True)
    elif path.is_file() and not path.is_symlink():
        path.open("w").close()
    else:
        return False
    return True


def _is_confirmed(files: list[Path]) -> bool:
    if not terminal.is_terminal(sys.stdin):
        problem = "removes tokens, history and conversations, and there is no terminal to confirm it"
        raise ConfigError("--all", problem, "--force")
    return bool(typer.confirm(f"Remove {len(files)} files, including tokens, history and conversations?"))
