"""`mew`: the commands, and the one place where an error becomes a line and an exit code.

Every command imports what it needs when it runs, so that `mew --help` answers at once. Exit codes: 0 done,
1 failed, 2 bad input, 3 skipped by the participant, 4 nobody answered, 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mew_agent.cli.app.help_pages import Contents, use_pages
from mew_agent.cli.app.options import Flags, TimeoutFlag, with_flags
from mew_agent.cli.chat import client
from mew_agent.cli.programs import agent, bridge, context, gateway, mcp_command, model, serve
from mew_agent.cli.space import commands, init, tokens

EXIT_CODES = "Exit codes: 0 done, 1 failed, 2 bad input, 3 skipped by the participant, 4 no answer, 130 interrupted."
ANSWER_SECONDS = 120.0
STATUS_SECONDS = 30.0

app = typer.Typer(
    name="mew",
    cls=Contents,
    epilog=EXIT_CODES,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(gateway.app, name="gateway")
app.add_typer(agent.app, name="agent")
app.add_typer(client.app, name="client")
app.add_typer(bridge.app, name="bridge")
app.add_typer(mcp_command.app, name="mcp")
app.add_typer(model.app, name="model")
app.add_typer(context.app, name="context")
app.add_typer(commands.app, name="space")
app.add_typer(tokens.app, name="token")
app.command("init", short_help="Make a space from a template, in `.mew` of this folder.")(init.init)
app.command("up", short_help=commands.UP)(commands.up)
app.command("down", short_help=commands.DOWN)(commands.down)
app.command("serve", short_help="Offer the agents as models to OpenAI clients.")(serve.serve)

SEE = "Show how full everybody's context window is."
"""`mew status` in the list of commands."""

Target = Annotated[str, typer.Argument(metavar="PARTICIPANT", help="Whom to act on.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Told to the participant.")]


@app.callback(invoke_without_command=True)
def root(
    called: typer.Context, *, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """AI agents, tools and people in one shared space; everyone knows how full every agent's context window is."""
    if version:
        from mew_agent._version import __version__

        typer.echo(f"mew {__version__}")
        raise typer.Exit
    if called.invoked_subcommand is None:
        typer.echo(called.get_help())
        typer.echo(f"\n{_next_step(Path.cwd())}")
        raise typer.Exit


def _next_step(folder: Path) -> str:
    """What one would do here next; by files alone, since this must be quick."""
    run = folder / ".mew" / "run.json"
    if run.exists():
        if _has_ended(run):
            return "The space of this folder was killed: `mew down` tidies up, then `mew up` starts it."
        return "A space of this folder runs: `mew space connect` takes part in it, `mew status` shows it."
    if (folder / ".mew" / "space.yaml").exists() or (folder / "space.yaml").exists():
        return "This folder has a space: `mew up` starts it, `mew up -i` also takes part in it."
    return "There is no space in this folder: `mew init` makes one, `mew demo` shows one."


def _has_ended(run: Path) -> bool:
    """Whether a run file names a gateway that is gone. Another process may have its id by now; then it seems to run."""
    import json

    if sys.platform == "win32":  # where 0 would be a signal, and no space runs
        return False
    try:
        os.kill(int(json.loads(run.read_text(encoding="utf-8"))["pids"]["gateway"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return False


@app.command(short_help=SEE)
@with_flags
def status(
    flags: Flags,
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, and redraw as reports come in.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON Lines: one board entry per participant.")] = False,
) -> int:
    """Show how full everybody's context window is, and how that is known (`~` marks an estimate)."""
    from mew_agent.cli.remote.status import show_status

    return show_status(flags, watch=watch, as_json=as_json)


commands.app.command("status", short_help=SEE)(status)


@app.command()
@with_flags
def chat(
    flags: Flags,
    target: Annotated[str, typer.Argument(metavar="PARTICIPANT", help="Whom to talk to.")],
    words: Annotated[list[str], typer.Argument(metavar="TEXT", help="What to say; `-` reads standard input.")],
    timeout: TimeoutFlag = ANSWER_SECONDS,
) -> int:
    """Say something to a participant and print its answer."""
    from mew_agent.cli.remote.chat import say_to

    return say_to(flags, target, " ".join(words), timeout_seconds=timeout)


@app.command(
    "run",
    short_help="Start a program of yours as a participant.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@with_flags
def run_program(
    flags: Flags,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="A program with its arguments.")],
) -> None:
    """Start a program of yours as a participant of the running space; a FILE.py runs under this Python."""
    from mew_agent.cli.space.run_as import run_as

    run_as(flags, command)


@app.command()
@with_flags
def compact(
    flags: Flags,
    target: Target,
    target_tokens: Annotated[
        int | None, typer.Option("--target-tokens", min=0, help="Stop there; else all but the newest turns.")
    ] = None,
    reason: Reason = None,
    timeout: TimeoutFlag = ANSWER_SECONDS,
) -> int:
    """Let a participant compact its context, and say what that freed. Exit code 3 if it was skipped."""
    from mew_agent.cli.remote import control

    return control.compact(flags, target, target_tokens=target_tokens, reason=reason, timeout_seconds=timeout)


@app.command()
@with_flags
def forget(
    flags: Flags,
    target: Target,
    *,
    newest: Annotated[bool, typer.Option("--newest/--oldest", help="From which end.")] = False,
    entries: Annotated[int | None, typer.Option("--entries", "-n", min=1, help="How many; else half.")] = None,
    timeout: TimeoutFlag = STATUS_SECONDS,
) -> int:
    """Let a participant drop entries from one end of its history."""
    from mew_agent.cli.remote import control

    return control.forget(flags, target, newest=newest, entries=entries, timeout_seconds=timeout)


@app.command()
@with_flags
def clear(
    flags: Flags,
    target: Target,
    reason: Reason = None,
    timeout: TimeoutFlag = STATUS_SECONDS,
) -> int:
    """Let a participant forget everything."""
    from mew_agent.cli.remote import control

    return control.clear(flags, target, reason=reason, timeout_seconds=timeout)


@app.command()
@with_flags
def pause(
    flags: Flags,
    target: Target,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0, help="Resume by itself after this.")] = None,
    reason: Reason = None,
    timeout: TimeoutFlag = STATUS_SECONDS,
) -> int:
    """Let a participant fall silent."""
    from mew_agent.cli.remote import control

    return control.pause(flags, target, seconds=seconds, reason=reason, timeout_seconds=timeout)


@app.command()
@with_flags
def resume(
    flags: Flags,
    target: Target,
    reason: Reason = None,
    timeout: TimeoutFlag = STATUS_SECONDS,
) -> int:
    """Let a paused participant speak again."""
    from mew_agent.cli.remote import control

    return control.resume(flags, target, reason=reason, timeout_seconds=timeout)


@app.command(short_help="Two agents fill up and are compacted: no key, under a minute.")
def demo(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="Texts; else our own docs.")] = None,
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the space running at the end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Events as JSON Lines.")] = False,
) -> int:
    """A space with two agents fills up, and is compacted: no key needed, under a minute."""
    from mew_agent.cli.demo.demo import demo as play

    return play(files or [], keep, as_json) or 0


use_pages(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; whatever goes wrong is one line on standard error."""
    _have_outputs()
    try:
        outcome = app(args=None if arguments is None else list(arguments), prog_name="mew", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        if sys.stderr.isatty():
            sys.stderr.write("\n")  # what is typed next does not begin behind the ^C
        return 130
    except BaseException as error:
        closed_pipe = isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)
        if not closed_pipe and (isinstance(error, SystemExit | GeneratorExit) or os.environ.get("MEW_DEBUG")):
            raise
        from mew_agent.cli.app.failures import explain
        from mew_agent.cli.app.terminal import PIPE_CLOSED

        code = PIPE_CLOSED if closed_pipe else explain(error)
        if code == PIPE_CLOSED:
            # Nobody reads any more; without this the interpreter would complain about it at the very end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code
    return outcome if isinstance(outcome, int) else 0


def _have_outputs() -> None:
    """Where the caller closed standard output or error, what is said goes nowhere instead of failing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - it stays open
