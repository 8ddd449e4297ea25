"""`mew up` and `mew down`, also as `mew space up|down|status|connect|clean`: a whole space from its space.yaml."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mew_agent.cli.app.options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    Flags,
    FolderFlag,
    HostFlag,
    LogLevel,
    LogLevelFlag,
    PortFlag,
    help_when_alone,
    with_flags,
)

if TYPE_CHECKING:
    from mew_agent.cli.space.plan import Request

app = typer.Typer(
    help="Take part in a space (`connect`); start, stop and look at it.",
    invoke_without_command=True,
    callback=help_when_alone,
)


UP = "Start a space: its gateway, and who has `auto_start`."
"""`mew up` in lists of commands; likewise `DOWN`."""

DOWN = "Stop the running space of this folder."


@app.command(short_help=UP)
def up(
    *,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running in the background.")] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="In the background, and talk in it from here.")
    ] = False,
    participant: Annotated[str | None, typer.Option("--participant", help="With -i: as whom.")] = None,
    port: PortFlag = DEFAULT_PORT,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The space.yaml.")] = None,
    space_dir: Annotated[Path | None, typer.Option("--space-dir", "-d", help="Its folder; else this one.")] = None,
    host: HostFlag = DEFAULT_HOST,
    log_level: LogLevelFlag = LogLevel.INFO,
    background: Annotated[bool, typer.Option("--background", hidden=True)] = False,
) -> int:
    """Start a space's gateway and every participant with `auto_start`; Ctrl-C stops them all.

    `base_url: rehearsal` under `agent:` starts a rehearsal model for the space, to try things out without a
    provider.
    """
    from mew_agent.cli.space.plan import Request
    from mew_agent.cli.space.up import start_detached, start_here

    request = Request(config=config, folder=space_dir, host=host, port=port, log_level=log_level)
    if interactive:
        return _start_and_talk(request, participant)
    if participant is not None:
        from mew_agent.errors import ConfigError

        raise ConfigError("--participant", "says as whom you talk", "--interactive with it")
    return start_detached(request) if detach else start_here(request, background=background)


def _start_and_talk(request: "Request", participant: str | None) -> int:
    from mew_spaces.config.loading import load_space

    from mew_agent.cli.app import terminal
    from mew_agent.cli.chat.connect import connect as join
    from mew_agent.cli.space.locate import space_config_path, space_folder
    from mew_agent.cli.space.plan import check_person
    from mew_agent.cli.space.up import start_detached

    path = space_config_path(request.config, request.folder)
    folder = space_folder(path)
    check_person(load_space(path), participant)
    start_detached(request)
    try:
        return join(Flags(participant=participant, folder=folder))
    finally:  # also after Ctrl-C
        terminal.say("the space keeps running; `mew down` stops it")


@app.command(short_help=DOWN)
def down(space_dir: FolderFlag = None) -> int:
    """Stop the running space of this folder, with everything it started."""
    from mew_spaces.launch.supervisor import stop_space

    from mew_agent.cli.app import terminal
    from mew_agent.cli.remote.identity import find_run

    found = find_run(space_dir)
    if found is None:
        terminal.say("nothing is running here")
        return terminal.DONE
    path, run = found
    stopped = stop_space(path, run)
    terminal.say(f"{run.space}: stopped" if stopped else f"{run.space}: was not running any more; tidied up")
    return terminal.DONE


@app.command(short_help="Take part in the running space from this terminal.")
@with_flags
def connect(flags: Flags) -> int:
    """Take part in the running space from this terminal; /help there tells what can be typed."""
    from mew_agent.cli.chat.connect import connect as join

    return join(flags)


@app.command()
def clean(
    *,
    logs: Annotated[bool, typer.Option("--logs", help="Only logs.")] = False,
    fifos: Annotated[bool, typer.Option("--fifos", help="Only FIFOs.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also tokens and conversations.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Ask nothing, and empty logs of a running space.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Name the files and leave them.")] = False,
    space_dir: FolderFlag = None,
) -> int:
    """Remove logs and FIFOs that runs of this folder's space left. space.yaml and agents always stay."""
    from mew_agent.cli.space import clean as cleaning

    sorts = cleaning.Sorts(logs=logs, fifos=fifos, everything=everything)
    return cleaning.clean(space_dir, sorts, force=force, dry_run=dry_run)
