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


ParticipantOption = Annotated[
    str | None,
    typer.Option("--participant", metavar="ID", help="Participant to act as (default: the space's person)."),
]
TokenOption = Annotated[
    str | None, typer.Option("--token", metavar="TOKEN", help="That participant's token (default: from .mew/tokens).")
]
GatewayOption = Annotated[
    str | None, typer.Option("--gateway", "-g", metavar="URL", help="Gateway (default: the running space's).")
]
SpaceOption = Annotated[
    str | None, typer.Option("--space", "-s", metavar="ID", help="Space id (default: the running space's).")
]
FolderOption = Annotated[
    Path | None,
    typer.Option("--space-dir", "-d", metavar="FOLDER", help="Folder of the space (default: this one or a parent)."),
]

# The next three belong to programs that join a space themselves. They read the environment too.
OwnGatewayOption = Annotated[
    str | None,
    typer.Option("--gateway", "-g", metavar="URL", help="Gateway (default: MEW_GATEWAY, then the running space)."),
]
OwnSpaceOption = Annotated[
    str | None,
    typer.Option("--space", "-s", metavar="ID", help="Space id (default: MEW_SPACE, then the running space)."),
]
OwnTokenOption = Annotated[
    str | None,
    typer.Option("--token", "-t", metavar="TOKEN", help="Token; MEW_TOKEN keeps it out of the process list."),
]

ConfigFileOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Path of space.yaml (default: found in the folder).")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Time to wait for the answer.")
]
LogLevelOption = Annotated[
    LogLevel, typer.Option("--log-level", "-l", metavar="LEVEL", help="Log at debug, info, warning or error.")
]
HostOption = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
PortOption = Annotated[
    int, typer.Option("--port", "-p", min=0, max=65535, metavar="PORT", help="Port to listen on; 0 picks a free port.")
]

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
