"""`mew`: the command line. Turns errors into a line of text and an exit code."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mew_agent.cli.app.commands import COMMANDS
from mew_agent.cli.app.exit_codes import ExitCode, exit_code_rows
from mew_agent.cli.app.groups import make_group
from mew_agent.cli.app.options import OUTPUT
from mew_agent.cli.app.signals import raise_on_interrupt


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors are printed as one line on standard error."""
    _ensure_output_streams()
    OUTPUT.is_quiet = OUTPUT.is_json = False
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _require_text(words)
        outcome = command_line().main(args=words, prog_name="mew", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        if sys.stderr.isatty():
            sys.stderr.write("\n")  # the next prompt starts on its own line, not after ^C
        return ExitCode.INTERRUPTED
    except BaseException as error:
        is_closed_pipe = isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)
        if not is_closed_pipe and (isinstance(error, SystemExit | GeneratorExit) or os.environ.get("MEW_DEBUG")):
            raise
        from mew_agent.cli.app.reported_errors import report_error

        code = ExitCode.PIPE_CLOSED if is_closed_pipe else report_error(error)
        if code == ExitCode.PIPE_CLOSED:
            # The interpreter flushes standard output again at exit, and would report the closed pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code
    return outcome if isinstance(outcome, int) else ExitCode.DONE


def _require_text(words: Sequence[str]) -> None:
    """Raise `ConfigError` for a word that is not text in the encoding of the shell: no message could carry it."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            from mew_agent.errors import ConfigError

            encoding = sys.getfilesystemencoding()
            raise ConfigError(ascii(word), f"is not valid text in this shell's encoding, {encoding}") from None


def command_line() -> Any:
    """Return the whole command line as a group of commands; none of them is imported yet."""
    group = make_group("mew", COMMANDS, _start, add_completion=True)
    group.tables = {"Exit codes": exit_code_rows()}
    group.epilog = "`mew help all` lists every command, `mew help options` the options that many commands have."
    return group


def _start(
    context: typer.Context, *, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Run AI agents, tools and people in one shared space where everyone sees how full each context window is."""
    if version:
        from mew_agent._version import __version__

        typer.echo(f"mew {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        if sys.stdout.isatty() and _is_running(Path.cwd()):
            from mew_agent.cli.app.options import ConnectionOptions
            from mew_agent.cli.app.terminal import full_screen, join_space

            if full_screen() is not None:
                raise_on_interrupt()
                join_space(ConnectionOptions())
                raise typer.Exit
        typer.echo(context.get_help())
        typer.echo(f"\n{_next_step(Path.cwd())}")
        raise typer.Exit


def _is_running(folder: Path) -> bool:
    """Return True if the files of this folder describe a running space."""
    run_file = folder / ".mew" / "run.json"
    return run_file.exists() and not _has_ended(run_file)


def _next_step(folder: Path) -> str:
    """Return the command to type next in this folder. Reads files only, to be fast."""
    run_file = folder / ".mew" / "run.json"
    if run_file.exists():
        if _has_ended(run_file):
            return "The space of this folder was killed. `mew down` cleans up, then `mew up` starts it again."
        return "A space is running in this folder. `mew` at a terminal opens it, `mew status` shows its board."
    if (folder / ".mew" / "space.yaml").exists() or (folder / "space.yaml").exists():
        return "This folder has a space. `mew up` starts it, `mew up -i` also joins it."
    return "This folder has no space. `mew init` creates one, `mew demo` shows one."


def _has_ended(run_file: Path) -> bool:
    """Return True if the gateway of a run file has ended. If another process has its id, it seems to run."""
    import json

    if sys.platform == "win32":  # `os.kill` with 0 sends a signal there
        return False
    try:
        os.kill(int(json.loads(run_file.read_text(encoding="utf-8"))["pids"]["gateway"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return False


def _ensure_output_streams() -> None:
    """Discard output to a stream that the caller closed, instead of failing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - it stays open
