"""Options that several commands share, so that they read and behave the same everywhere.

A group of options is a dataclass whose fields are annotated with `option`. A command takes it as one parameter.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import typer

CommandResult = TypeVar("CommandResult")


@dataclass
class Output:
    """The output options of the running command: `--quiet` and `--json`."""

    is_quiet: bool = False
    is_json: bool = False


OUTPUT: Final = Output()
LogLevel = Literal["debug", "info", "warning", "error"]


SHORT_OPTIONS: Final[Mapping[str, str]] = {
    "-c": "--config",
    "-d": "--space-dir",
    "-f": "--follow",
    "-g": "--gateway",
    "-h": "--help",
    "-i": "--interactive",
    "-l": "--log-level",
    "-m": "--model",
    "-n": "--last",
    "-o": "--output",
    "-p": "--port",
    "-q": "--quiet",
    "-s": "--space",
    "-t": "--token",
    "-w": "--watch",
}
"""The meaning of each short option, in every command. Help shows no other; a test checks that options agree with it."""


COMMON_OPTIONS: Final[Mapping[str, str]] = {
    "--json": "Print JSON: an object or a list of objects; one object per line while a command keeps running.",
    "--quiet, -q": "Print results and errors only: no progress, hints or warnings.",
    "--participant ID": "Participant to act as (default: the space's person).",
    "--space-dir, -d FOLDER": "Folder of the space (default: this one or a parent).",
    "--gateway, -g URL": "Gateway, or several separated by commas (default: MEW_GATEWAY, then the running space).",
    "--space, -s ID": "Space id (default: MEW_SPACE, then that of the folder).",
    "--token, -t TOKEN": "Token (default: MEW_TOKEN, then the one in .mew/tokens).",
}
"""Options that many commands have, by usage. The help of a command only names them; `mew help options` explains."""


def common_options(parameters: Iterable[Any]) -> list[str]:
    """Return the `COMMON_OPTIONS` that a command has in the common meaning, by long name."""
    known = {usage.split()[0].rstrip(","): text for usage, text in COMMON_OPTIONS.items()}
    return [name for name, text in known.items() if any(name in one.opts and one.help == text for one in parameters)]


def _common(usage: str, **settings: Any) -> Any:
    return option(usage, COMMON_OPTIONS[usage], **settings)


def option(usage: str, text: str = "", **settings: Any) -> Any:
    """Return an option from its usage, for example `--gateway, -g URL`: a word without a dash names the value.

    Help pages show the value's name, because they have no column for types. A switch has none. Help shows the first
    long name. Other long names, and short names with another meaning in `SHORT_OPTIONS`, are hidden aliases for scripts
    of the TypeScript CLI.
    """
    words = usage.replace(",", " ").split()
    name = words.pop() if not words[-1].startswith("-") else None
    return typer.Option(*words, metavar=name, help=text, **settings)


def complete_participants(context: typer.Context, incomplete: str) -> list[str]:
    """Return the participants in space.yaml, for shell completion."""
    from mew_spaces.config.loading import load_space
    from mew_spaces.errors import SpacesError

    from mew_agent.cli.app.locate import find_run, space_config_path
    from mew_agent.errors import MewAgentError

    given = context.params
    folder = given.get("folder") or given.get("space_dir")
    try:
        found = find_run(folder) if given.get("config") is None else None
        path = Path(found[1].config) if found is not None else space_config_path(given.get("config"), folder)
        names = load_space(path).participants
    except (MewAgentError, SpacesError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def read_log_level(text: str) -> LogLevel:
    """Read a log level. The TypeScript CLI calls one of them `warn`."""
    levels: dict[str, LogLevel] = {level: level for level in get_args(LogLevel)} | {"warn": "warning"}
    if text not in levels:
        raise typer.BadParameter(f"'{text}' is not one of {', '.join(get_args(LogLevel))}.")
    return levels[text]


def participant_option(text: str) -> Any:
    """Return the option of a command that joins as one participant."""
    usage = "--participant, --participant-id, --id, -p, -i ID"
    return option(usage, text, autocompletion=complete_participants)


def participant_argument(text: str, name: str = "PARTICIPANT") -> Any:
    """Return an argument that names a participant; shells complete it."""
    return typer.Argument(metavar=name, help=text, autocompletion=complete_participants)


FolderOption = Annotated[Path | None, _common("--space-dir, -d FOLDER", exists=True, file_okay=False)]
GatewayOption = Annotated[str | None, _common("--gateway, -g URL")]
SpaceOption = Annotated[str | None, _common("--space, -s ID")]
TokenOption = Annotated[str | None, _common("--token, -t TOKEN")]

PlainOption = Annotated[bool, option("--plain", "Print line by line instead of the full-screen application.")]
TargetArgument = Annotated[str, participant_argument("Id of the participant.")]
TimeoutOption = Annotated[float, option("--timeout SECONDS", "Time to wait for the answer.", min=0.1)]
ReasonOption = Annotated[str | None, option("--reason TEXT", "Reason to send to the participant.")]
LogLevelOption = Annotated[
    LogLevel,
    option("--log-level, -l LEVEL", "Log at debug, info, warning or error.", parser=read_log_level),
]
HostOption = Annotated[str, option("--host ADDRESS", "Address to listen on.")]
PortOption = Annotated[int, option("--port, -p PORT", "Port to listen on; 0 picks a free port.", min=0, max=65535)]


BackplaneOption = Annotated[
    str | None,
    option(
        "--backplane ADDRESSES", "Address of the storage that several gateways share (see `backplane` of space.yaml)."
    ),
]

# Loopback: other machines reach a space only with its owner's permission.
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The participant to act as, and its space, as given on the command line. None means: look elsewhere."""

    participant: Annotated[str | None, _common("--participant ID", autocompletion=complete_participants)] = None
    gateway: GatewayOption = None
    space: SpaceOption = None
    folder: FolderOption = None


@dataclass(frozen=True, slots=True)
class ProgramConnection(ConnectionOptions):
    """The same for a program in the foreground, with the option names of the TypeScript CLI."""

    participant: Annotated[
        str | None, participant_option("Participant to act as (default: MEW_PARTICIPANT_ID, then the space's person).")
    ] = None
    token: TokenOption = None


@dataclass(frozen=True, slots=True)
class SpaceFileOptions:
    """Where the space.yaml is, as given on the command line."""

    folder: FolderOption = None
    config: Annotated[Path | None, option("--config FILE", "Path of space.yaml (default: found in the folder).")] = None


def typer_command(command: Callable[..., CommandResult], *, has_json: bool = True) -> Callable[..., CommandResult]:
    """Return a command with a parameter for each option of its groups, nested ones too, and the options of `OUTPUT`."""

    @wraps(command)
    def run(*, is_quiet: bool = False, is_json: bool = False, **given: Any) -> CommandResult:
        OUTPUT.is_quiet, OUTPUT.is_json = is_quiet, is_json
        return _call_with(command, given)

    # Keyword-only, because options with a default may come before arguments without one.
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in _options_of(command)]
    parameters.sort(key=lambda one: one.name in ConnectionOptions.__slots__)  # rarely needed, so help lists them last
    added = {"is_quiet": "--quiet, -q", **({"is_json": "--json"} if has_json else {})}
    for name, usage in added.items():
        switch = Annotated[bool, _common(usage)]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=switch))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options_of(called: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    groups = _groups_of(called)
    for name, parameter in inspect.signature(called, eval_str=True).parameters.items():
        yield from _options_of(groups[name]) if name in groups else (parameter,)


def _call_with(called: Callable[..., CommandResult], given: Mapping[str, Any]) -> CommandResult:
    groups = _groups_of(called)
    names = inspect.signature(called).parameters
    return called(**{name: _call_with(groups[name], given) if name in groups else given[name] for name in names})


def _groups_of(called: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(called, eval_str=True).parameters
    return {name: one.annotation for name, one in parameters.items() if is_dataclass(one.annotation)}
