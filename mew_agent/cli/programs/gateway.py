"""`mew gateway start`: runs the gateway of one or more spaces in the foreground."""

from pathlib import Path
from typing import Annotated

from mew_spaces.config.loading import load_space
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.auth import state_dir
from mew_spaces.gateway.gateway import HostedSpace, RunningGateway, run_gateway

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import space_config_path
from mew_agent.cli.app.options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    HostOption,
    LogLevel,
    LogLevelOption,
    PortOption,
    option,
)


def start(
    *,
    port: PortOption = DEFAULT_PORT,
    space_config: Annotated[
        list[Path] | None, option("--space-config, -s FILE", "Path of space.yaml (default: this folder's); repeatable.")
    ] = None,
    host: HostOption = DEFAULT_HOST,
    log_level: LogLevelOption = LogLevel.INFO,
    auto_start: Annotated[bool, option("--auto-start/--no-auto-start", hidden=True)] = False,
) -> None:
    """Run the gateway of one or more spaces.

    Starts no participants; `mew up` does.
    """
    terminal.configure_logging(log_level)
    configs = space_config or [space_config_path(None, None)]
    states = [state_dir(path) for path in configs]
    _refuse_shared_folders(configs, states)
    first, *others = (HostedSpace(load_space(path), state) for path, state in zip(configs, states, strict=True))
    if auto_start:
        terminal.warn("`mew gateway start` starts no participants; `mew up` starts those with auto_start")

    def announce(gateway: RunningGateway) -> None:
        names = ", ".join(f"'{one.config.space.id}'" for one in (first, *others))
        terminal.print_line(f"gateway of {names} listens at {gateway.url} (dashboard: {gateway.url}/dashboard)")

    run_gateway(first.config, state=states[0], host=host, port=port, others=others, on_ready=announce)


def _refuse_shared_folders(configs: list[Path], states: list[Path]) -> None:
    """Spaces in one folder would share tokens, invitations and logs."""
    for index, state in enumerate(states):
        if state in states[:index]:
            other = configs[states.index(state)]
            raise SpacesError(f"{configs[index]}: is in the same folder as {other}; give each space its own folder")
