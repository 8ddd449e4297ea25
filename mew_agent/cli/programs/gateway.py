"""`mew gateway`: run the gateway of one space or of several in the foreground."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from mew_spaces.errors import SpacesError

from mew_agent.cli.app.options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    HostFlag,
    LogLevel,
    LogLevelFlag,
    PortFlag,
    help_when_alone,
)

if TYPE_CHECKING:
    from mew_spaces.gateway.gateway import RunningGateway

SpaceConfigs = Annotated[
    list[Path] | None,
    typer.Option("--space-config", "-s", help="The space.yaml, else this folder's; once more for each further space."),
]

app = typer.Typer(help="Run a gateway.", invoke_without_command=True, callback=help_when_alone)


@app.command()
def start(
    *,
    port: PortFlag = DEFAULT_PORT,
    space_config: SpaceConfigs = None,
    host: HostFlag = DEFAULT_HOST,
    log_level: LogLevelFlag = LogLevel.INFO,
    auto_start: Annotated[bool, typer.Option("--auto-start/--no-auto-start", hidden=True)] = False,
) -> None:
    """Start the gateway of a space, or of several on one port. It starts no participants; `mew up` does."""
    from mew_spaces.config.loading import load_space
    from mew_spaces.gateway.auth import state_dir
    from mew_spaces.gateway.gateway import HostedSpace, run_gateway

    from mew_agent.cli.app import terminal
    from mew_agent.cli.space.locate import space_config_path

    terminal.configure_logging(log_level)
    configs = space_config or [space_config_path(None, None)]
    states = [state_dir(path) for path in configs]
    _refuse_shared_folders(configs, states)
    first, *others = (HostedSpace(load_space(path), state) for path, state in zip(configs, states, strict=True))
    if auto_start:
        terminal.warn("`gateway start` starts no participants; `mew up` starts those with auto_start")

    def announce(gateway: "RunningGateway") -> None:
        names = ", ".join(f"'{one.config.space.id}'" for one in (first, *others))
        terminal.say(f"gateway of {names} listens at {gateway.url} (dashboard: {gateway.url}/dashboard)")

    run_gateway(first.config, state=states[0], host=host, port=port, others=others, on_ready=announce)


def _refuse_shared_folders(configs: list[Path], states: list[Path]) -> None:
    """Spaces in one folder would share tokens, invitations and logs."""
    for index, state in enumerate(states):
        if state in states[:index]:
            other = configs[states.index(state)]
            raise SpacesError(f"{configs[index]}: lies in one folder with {other}; give each space a folder of its own")
