"""Options that several commands share, so that they read and behave the same everywhere."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

CommandResult = TypeVar("CommandResult")


class LogLevel(StrEnum):
    """The least severe log lines that a program writes."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def option(usage: str, text: str = "", **settings: Any) -> Any:
    """An option from its usage, for example `--gateway, -g URL`: a word without a dash names the value.

    Help pages show that name, because they have no column for types. A switch has none.
    """
    words = usage.replace(",", " ").split()
    name = words.pop() if not words[-1].startswith("-") else None
    return typer.Option(*words, metavar=name, help=text, **settings)


ParticipantOption = Annotated[
    str | None, option("--participant ID", "Participant to act as (default: the space's person).")
]
TokenOption = Annotated[str | None, option("--token TOKEN", "That participant's token (default: from .mew/tokens).")]
GatewayOption = Annotated[str | None, option("--gateway, -g URL", "Gateway (default: the running space's).")]
SpaceOption = Annotated[str | None, option("--space, -s ID", "Space id (default: the running space's).")]
FolderOption = Annotated[
    Path | None, option("--space-dir, -d FOLDER", "Folder of the space (default: this one or a parent).")
]

# The next three belong to programs that join a space themselves. They read the environment too.
OwnGatewayOption = Annotated[
    str | None, option("--gateway, -g URL", "Gateway (default: MEW_GATEWAY, then the running space).")
]
OwnSpaceOption = Annotated[
    str | None, option("--space, -s ID", "Space id (default: MEW_SPACE, then the running space).")
]
OwnTokenOption = Annotated[
    str | None, option("--token, -t TOKEN", "Token; MEW_TOKEN keeps it out of the process list.")
]

ConfigFileOption = Annotated[Path | None, option("--config FILE", "Path of space.yaml (default: found in the folder).")]
TimeoutOption = Annotated[float, option("--timeout SECONDS", "Time to wait for the answer.", min=0.1)]
LogLevelOption = Annotated[LogLevel, option("--log-level, -l LEVEL", "Log at debug, info, warning or error.")]
HostOption = Annotated[str, option("--host ADDRESS", "Address to listen on.")]
PortOption = Annotated[int, option("--port, -p PORT", "Port to listen on; 0 picks a free port.", min=0, max=65535)]

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080

_CONNECTION_OPTIONS: Final = {
    "participant": ParticipantOption,
    "token": TokenOption,
    "gateway": GatewayOption,
    "space": SpaceOption,
    "folder": FolderOption,
}


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The participant to act as, and its space, as given on the command line. None means: look elsewhere."""

    participant: str | None = None
    token: str | None = None
    gateway: str | None = None
    space: str | None = None
    folder: Path | None = None


def with_connection_options(command: Callable[..., CommandResult]) -> Callable[..., CommandResult]:
    """Give a command that takes `connection: ConnectionOptions` one option for each of its fields."""

    @wraps(command)
    def run(**given: Any) -> CommandResult:
        connection = ConnectionOptions(**{name: given.pop(name) for name in _CONNECTION_OPTIONS})
        return command(connection=connection, **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [parameter.replace(kind=keyword) for parameter in own if parameter.name != "connection"]
    parameters += [
        inspect.Parameter(name, keyword, default=None, annotation=option)
        for name, option in _CONNECTION_OPTIONS.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads the signature
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
