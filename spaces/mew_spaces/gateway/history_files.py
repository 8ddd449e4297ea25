"""The files of a space's history in its state folder.

A single gateway has one file. If gateways share the space and the folder, the first uses this file, and each further
gateway has its own.
"""

from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from urllib.parse import quote

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.membership_store import move_removals
from mew_spaces.gateway.service import history_bounds
from mew_spaces.log.memory import NotStored
from mew_spaces.log.sqlite import SqliteLog, Unreadable

IS_HELD = "another gateway serves this space; stop it, or start all of them with the same --backplane"


def history_path(config: SpaceConfig, state: Path, number: int = 1) -> Path:
    """Return the file of a space's history, or the file of a further gateway in the same folder."""
    name = f"history-{quote(config.space.id, safe='')}.sqlite3"
    return state / (name if number == 1 else f"{name}-gateway-{number}")


def open_log(config: SpaceConfig, state: Path, *, is_shared: bool = False) -> SqliteLog:
    """Open the history of a space with one or several gateways. Raises `SpacesError`.

    Moves removals in further gateways' files to the first file, because only the first is read again.
    """
    numbers = count(1)
    while (opened := _open(config, state, next(numbers), is_shared=is_shared)) is None:
        if not is_shared:
            raise SpacesError(f"{history_path(config, state)}: {IS_HELD}")
    if opened.path != history_path(config, state):
        return opened
    with ExitStack() as on_failure:
        on_failure.callback(opened.close)
        while (path := history_path(config, state, number := next(numbers))).exists():
            if (copy := _open(config, state, number, is_shared=True)) is not None:
                with closing(copy):
                    _move_removals(copy, opened, path)
        on_failure.pop_all()
    return opened


def _open(config: SpaceConfig, state: Path, number: int, *, is_shared: bool) -> SqliteLog | None:
    """Open a file; None if another gateway has it open. Raises `SpacesError`."""
    path = history_path(config, state, number)
    durability = config.history.durability
    if is_shared and durability == "synced":  # the shared storage syncs what the gateways accept
        durability = "flushed"
    lock = path.with_name(f"{path.name}.gateway.lock") if is_shared else None
    try:
        return SqliteLog(path, bounds=history_bounds(config), durability=durability, lock=lock)
    except BlockingIOError:
        return None
    except Unreadable as error:
        away = f"move it and all files away whose names begin with '{path.name}', then"
        kept = "begin with what other gateways share" if is_shared else "repeat the invitations and removals"
        if number > 1:
            kept = "begin without it; a gateway that then starts alone does not know the removals in it"
        raise SpacesError(f"{path}: cannot be read: {error}; {away} restore a backup or {kept}") from None
    except (OSError, NotStored) as error:
        raise SpacesError(f"{path}: cannot be opened: {error}; make its folder writable") from None


def _move_removals(source: SqliteLog, target: SqliteLog, path: Path) -> None:
    try:
        move_removals(source, target)
    except NotStored as error:
        raise SpacesError(f"{path}: its removals cannot be moved to the first file: {error}") from None
