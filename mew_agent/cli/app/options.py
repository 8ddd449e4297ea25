"""Options that several commands share, so that they read and behave the same everywhere."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

Outcome = TypeVar("Outcome")


class LogLevel(StrEnum):
    """How much a program tells of itself."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


ParticipantFlag = Annotated[
    str | None, typer.Option("--participant", help="As whom; else the person of the running space.")
]
TokenFlag = Annotated[str | None, typer.Option("--token", help="Their token; else the one in .mew/tokens.")]
GatewayFlag = Annotated[str | None, typer.Option("--gateway", "-g", help="URL; else the running space's.")]
SpaceFlag = Annotated[str | None, typer.Option("--space", "-s", help="Space id; else the running space's.")]
FolderFlag = Annotated[
    Path | None, typer.Option("--space-dir", "-d", help="The space's folder; else this one or one above it.")
]
OwnGatewayFlag = Annotated[str | None, typer.Option("--gateway", "-g", help="URL of the gateway.")]
OwnSpaceFlag = Annotated[str | None, typer.Option("--space", "-s", help="Space id.")]
OwnTokenFlag = Annotated[str | None, typer.Option("--token", "-t", help="The token; MEW_TOKEN keeps it off `ps`.")]
"""These three are of programs that join themselves, and are found in the environment too."""

TimeoutFlag = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the answer.")]
LogLevelFlag = Annotated[LogLevel, typer.Option("--log-level", "-l", help="How much to tell.")]
HostFlag = Annotated[str, typer.Option("--host", help="Address to listen on.")]
PortFlag = Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")]

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080


_FLAGS: Final = {
    "participant": ParticipantFlag,
    "token": TokenFlag,
    "gateway": GatewayFlag,
    "space": SpaceFlag,
    "folder": FolderFlag,
}


@dataclass(frozen=True, slots=True)
class Flags:
    """Who asks, and which space: what was given on the command line; None is found elsewhere."""

    participant: str | None = None
    token: str | None = None
    gateway: str | None = None
    space: str | None = None
    folder: Path | None = None


def with_flags(command: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """A command that takes `flags: Flags`, as one that has an option for each of them behind its own."""

    @wraps(command)
    def run(**given: Any) -> Outcome:
        flags = Flags(**{name: given.pop(name) for name in _FLAGS})
        return command(flags=flags, **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [parameter.replace(kind=keyword) for parameter in own if parameter.name != "flags"]
    parameters += [inspect.Parameter(name, keyword, default=None, annotation=flag) for name, flag in _FLAGS.items()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def help_when_alone(context: typer.Context) -> None:
    """What a group of commands does without a command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
