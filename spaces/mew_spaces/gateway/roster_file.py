"""Keeps a roster in `<state>/roster.json`, readable by its owner alone."""

import os
import secrets
from pathlib import Path

from pydantic import ValidationError

from mew_spaces.core.roster import Roster
from mew_spaces.errors import SpacesError

ROSTER_FILE_NAME = "roster.json"


def read_roster(state: Path) -> Roster:
    """The stored roster, empty when there is none. Raises `SpacesError` for a file that is none."""
    path = state / ROSTER_FILE_NAME
    try:
        return Roster.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Roster()
    except (OSError, ValidationError) as error:
        first = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
        raise SpacesError(f"{path}: is no list of invited and removed participants: {first}") from None


def write_roster(state: Path, roster: Roster) -> None:
    """Replace the stored roster in one step. Raises `OSError`."""
    state.mkdir(parents=True, exist_ok=True)
    path = state / ROSTER_FILE_NAME
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(roster.model_dump_json(indent=2).encode() + b"\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
