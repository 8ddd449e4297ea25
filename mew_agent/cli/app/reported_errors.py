"""Turns an exception into one error line and an exit code."""

import re
from collections.abc import Iterable
from typing import Any, Final

from mew_protocol.expectations import expectation
from mew_settings.plugins import TwoPlugins
from mew_settings.setting_problems import did_you_mean
from mew_spaces.errors import PortInUse, SpaceConfigError, SpacesError, TokenError
from pydantic import ValidationError

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import SHORT_OPTIONS
from mew_agent.errors import (
    ConfigError,
    MewAgentError,
    NotConnected,
    NotPermitted,
    PeerTimeout,
    Unauthorized,
    described,
    first_cause,
)

_BAD_INPUT: Final = (ConfigError, Unauthorized, NotPermitted, SpaceConfigError, TokenError, PortInUse)
_NO_ANSWER: Final = (NotConnected, PeerTimeout)

_USAGE_WORDS: Final = (
    (r" \(Possible options: .*\)", ""),
    (r"^(Invalid value for|Missing option) '(--[\w-]+)'( / '-\w')+", r"\1 '\2'"),
    (r"Got unexpected extra arguments? ?(?:\(s\))? \((.*)\)", r"Unexpected argument: \1"),
    (r": (\S+) is not in the range x>=(\S+)$", r": must be at least \2, not '\1'"),
    (r": ('.*') is not a valid integer(?: range)?$", r": must be a whole number, not \1"),
    (r": ('.*') is not a valid float(?: range)?$", r": must be a number, not \1"),
)
"""Typer's words for a wrong option, and ours; the last three are of versions without pydantic."""

_NAMING_OPTIONS: Final = ("--participant", "--observer")
"""Options for a name that is often typed without one."""


def report_error(error: BaseException) -> int:
    """Print one line and return the exit code. Of a group of errors, report the first."""
    error = first_cause(error)
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return ExitCode.PIPE_CLOSED
    usage = getattr(error, "format_message", None)
    if usage is not None:
        # A usage error of the command-line library, which keeps its class private.
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "mew"
        if isinstance(error.__cause__, ValidationError):
            error.message = expectation(error.__cause__.errors()[0])  # type: ignore[attr-defined]
        text = _one_line(str(usage())).rstrip(".")
        for theirs, ours in _USAGE_WORDS:
            text = re.sub(theirs, ours, text)
        text = re.sub(r"^Option '(-\w)'", lambda short: f"{short[0]} ({SHORT_OPTIONS.get(short[1], short[1])})", text)
        text += _meant_option(error) + _expected_arguments(text, context)
        see = f"see `{path} --help`)"
        terminal.print_error(f"{text.removesuffix(')')} {see}" if text.endswith("?)") else f"{text} ({see}")
        return ExitCode.BAD_INPUT
    terminal.print_error(_one_line(_message(error)))
    if isinstance(error, _BAD_INPUT):
        return ExitCode.BAD_INPUT
    return ExitCode.NO_ANSWER if isinstance(error, _NO_ANSWER) else ExitCode.FAILED


def _meant_option(error: Any) -> str:
    """Return the option that an unknown one probably misspells."""
    known = getattr(error, "possibilities", None) or ()
    return did_you_mean(error.option_name, [name for name in known if name != "--help"]) if known else ""


def _expected_arguments(text: str, context: Any) -> str:
    """Return the arguments of a command, for the error about an extra argument."""
    given = re.fullmatch(r"Unexpected argument: (.*)", text)
    if given is None or context is None:
        return ""
    parameters = context.command.params
    arguments = [one for one in parameters if one.param_type_name == "argument" and not one.hidden]
    if arguments:
        return f"; expected {' '.join(one.metavar or one.name.upper() for one in arguments)}"
    return f"; expected {' or '.join(_naming_options(given[1], parameters)) or 'options only'}"


def _naming_options(value: str, parameters: Iterable[Any]) -> list[str]:
    """Return the options of a command that accept a value typed as an argument."""
    known = {name for one in parameters for name in one.opts}
    return [f"{name} {value}" for name in _NAMING_OPTIONS if name in known]


def _message(error: BaseException) -> str:
    match error:
        case Unauthorized():
            command = f"`mew token {error.participant}`"
            return f"{error}. In the folder of the space, {command} prints its token"
        case MewAgentError() | SpacesError() | TwoPlugins():
            return str(error)
        case OSError(strerror=str(reason)):
            return f"{error.filename}: {reason}" if error.filename is not None else reason
        case _:
            return f"{described(error)} (MEW_DEBUG=1 shows the traceback)"


def _one_line(text: str) -> str:
    return " ".join(text.split())
