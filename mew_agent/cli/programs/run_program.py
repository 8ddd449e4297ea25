"""`mew run`: starts a program of the user as a participant of the running space.

Owns the program's environment. The program replaces this process and takes over its terminal, signals and exit code.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from mew_agent.cli.app.options import ProgramConnection
from mew_agent.cli.remote.identity import find_identity
from mew_agent.cli.space.plan import INTERPRETER
from mew_agent.errors import ConfigError


def run_program(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="Program and its arguments.")],
    connection: ProgramConnection,
) -> None:
    """Run your own program as a participant.

    A FILE.py runs with the Python that runs `mew`. The program reads MEW_GATEWAY, MEW_SPACE, MEW_PARTICIPANT_ID and
    MEW_TOKEN, as `Participant.from_environment` does.
    """
    _check_order(command, connection)
    who = find_identity(connection)
    is_python = command[0].endswith(".py")
    if not (Path(command[0]).is_file() if is_python else shutil.which(command[0])):
        raise ConfigError("COMMAND", f"program '{command[0]}' not found")
    arguments = [sys.executable, *command] if is_python else list(command)
    sys.stdout.flush()
    environment = {
        **os.environ,
        "MEW_GATEWAY": who.ws_url,
        "MEW_SPACE": who.space,
        "MEW_PARTICIPANT_ID": who.participant,
        "MEW_TOKEN": who.token,
        INTERPRETER: sys.executable,
    }
    os.execvpe(arguments[0], arguments, environment)  # noqa: S606 - the user's own program


def _check_order(command: list[str], connection: ProgramConnection) -> None:
    """Refuse `mew run FILE --participant ID`: the program would get the option, and run as the default person."""
    for option, given in (("--participant", connection.participant), ("--space-dir", connection.folder)):
        value = next((one for one in command[1:] if one == option or one.startswith(f"{option}=")), None)
        if value is not None and given is None:
            problem = f"after {command[0]} is an argument of that program"
            raise ConfigError(
                option,
                problem,
                f"`mew run {option} ... {command[0]}`; repeat it after the program if the program needs it too",
            )
