"""`mew run`: start a program of yours as a participant of the running space, as `mew up` starts programs of its own.

Owns the environment that it finds itself in. The program takes this process's place, so that the terminal, signals and
the exit code are its own.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from mew_agent.cli.app.options import Flags
from mew_agent.cli.remote.identity import Identity, find_identity
from mew_agent.cli.space.plan import INTERPRETER
from mew_agent.errors import ConfigError


def run_as(flags: Flags, command: Sequence[str]) -> None:
    """Become the program. A Python file runs under this Python. Raises `ConfigError` where there is no such program."""
    who = find_identity(flags)
    is_python = command[0].endswith(".py")
    if not (Path(command[0]).is_file() if is_python else shutil.which(command[0])):
        raise ConfigError("COMMAND", f"there is no program '{command[0]}'")
    arguments = [sys.executable, *command] if is_python else list(command)
    sys.stdout.flush()
    os.execvpe(arguments[0], arguments, {**os.environ, **environment_of(who)})  # noqa: S606 - the user's own program


def environment_of(who: Identity) -> dict[str, str]:
    """What `Participant.from_environment` reads."""
    return {
        "MEW_GATEWAY": who.ws_url,
        "MEW_SPACE": who.space,
        "MEW_PARTICIPANT_ID": who.participant,
        "MEW_TOKEN": who.token,
        INTERPRETER: sys.executable,
    }
