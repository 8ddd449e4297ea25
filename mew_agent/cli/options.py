"""Options that several commands share, so that they read and behave the same everywhere."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer


class LogLevel(StrEnum):
    """How much a program tells of itself."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


ParticipantFlag = Annotated[
    str | None, typer.Option("--participant", help="Who asks; else the person of the running space.")
]
TokenFlag = Annotated[str | None, typer.Option("--token", help="Their token; else the one in .mew/tokens.")]
GatewayFlag = Annotated[str | None, typer.Option("--gateway", "-g", help="URL; else the running space's.")]
SpaceFlag = Annotated[str | None, typer.Option("--space", "-s", help="Space id; else the running space's.")]
FolderFlag = Annotated[
    Path | None, typer.Option("--space-dir", "-d", help="The space's folder; else this one or one above it.")
]
TimeoutFlag = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the answer.")]
LogLevelFlag = Annotated[LogLevel, typer.Option("--log-level", "-l", help="How much to tell.")]
HostFlag = Annotated[str, typer.Option("--host", help="Address to listen on.")]
PortFlag = Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")]

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080


def help_when_alone(context: typer.Context) -> None:
    """What a group of commands does without a command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
