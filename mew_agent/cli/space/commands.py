"""`mew up` and `mew down`: start and stop a whole space from its space.yaml."""

import sys
from pathlib import Path
from typing import Annotated

from mew_spaces.launch.supervisor import stop_space

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import find_run
from mew_agent.cli.app.options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    ConnectionOptions,
    FolderOption,
    HostOption,
    LogLevel,
    LogLevelOption,
    PortOption,
    option,
)
from mew_agent.cli.space.plan import LaunchPlan, StartOptions, make_launch_plan
from mew_agent.cli.space.up import start_detached, start_here
from mew_agent.errors import ConfigError


def up(
    *,
    detach: Annotated[bool, option("--detach", "Run in the background.")] = False,
    interactive: Annotated[
        bool, option("--interactive, -i", "Run in the background and join from this terminal.")
    ] = False,
    participant: Annotated[
        str | None, option("--participant ID", "With -i: participant to act as (default: the space's person).")
    ] = None,
    port: PortOption = DEFAULT_PORT,
    config: Annotated[
        Path | None, option("--config, -c FILE", "Path of space.yaml (default: found in the folder).")
    ] = None,
    space_dir: Annotated[
        Path | None, option("--space-dir, -d FOLDER", "Folder of the space (default: this one).")
    ] = None,
    host: HostOption = DEFAULT_HOST,
    log_level: LogLevelOption = LogLevel.INFO,
    plan_from_stdin: Annotated[bool, option("--plan-from-stdin", hidden=True)] = False,
) -> int:
    """Start a space: its gateway and its participants.

    Starts every participant with `auto_start`; Ctrl-C stops them all. An agent with `base_url: rehearsal` uses a
    built-in rehearsal model, so you can try things out without a provider.
    """
    if sys.platform == "win32":
        raise ConfigError("mew up", "needs a POSIX system; run `mew gateway start` and `mew agent run` by hand")
    if plan_from_stdin:
        return start_here(LaunchPlan.from_json(sys.stdin.buffer.read()), is_background=True)
    if participant is not None and not interactive:
        raise ConfigError("--participant", "requires --interactive")
    options = StartOptions(config, space_dir, host, port, log_level, joins=interactive, participant=participant)
    plan = make_launch_plan(options)
    if interactive:
        return _start_and_join(plan, participant)
    return start_detached(plan) if detach else start_here(plan)


def _start_and_join(plan: LaunchPlan, participant: str | None) -> int:
    from mew_agent.cli.chat.connect import join_space

    start_detached(plan)
    try:
        return join_space(ConnectionOptions(participant=participant, folder=plan.launch.folder), plan.launch.config)
    finally:  # also after Ctrl-C
        terminal.print_line("the space keeps running; `mew down` stops it")


def down(space_dir: FolderOption = None) -> int:
    """Stop the running space of this folder.

    Stops everything that `mew up` started.
    """
    found = find_run(space_dir)
    if found is None:
        terminal.print_line("no space is running here")
        return terminal.DONE
    path, run = found
    stopped = stop_space(path, run)
    terminal.print_line(f"{run.space}: stopped" if stopped else f"{run.space}: had already ended; cleaned up")
    return terminal.DONE
