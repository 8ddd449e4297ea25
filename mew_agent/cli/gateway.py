"""`mew gateway`: run a space's gateway in the foreground."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mew_agent.cli.options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    HostFlag,
    LogLevel,
    LogLevelFlag,
    PortFlag,
    help_when_alone,
)

if TYPE_CHECKING:
    from spaces.gateway import RunningGateway

app = typer.Typer(help="Run a gateway.", invoke_without_command=True, callback=help_when_alone)


@app.command()
def start(
    *,
    port: PortFlag = DEFAULT_PORT,
    space_config: Annotated[Path, typer.Option("--space-config", "-s", help="The space.yaml.")] = Path("space.yaml"),
    host: HostFlag = DEFAULT_HOST,
    log_level: LogLevelFlag = LogLevel.INFO,
    auto_start: Annotated[bool, typer.Option("--auto-start/--no-auto-start", hidden=True)] = False,
) -> None:
    """Start the gateway of a space. It starts no participants; `mew up` does."""
    from mew_agent.cli import terminal
    from spaces.auth import state_dir
    from spaces.config import load_space
    from spaces.gateway import run_gateway

    terminal.configure_logging(log_level)
    config = load_space(space_config)
    if auto_start:
        terminal.warn("`gateway start` starts no participants; `mew up` starts those with auto_start")

    def announce(gateway: "RunningGateway") -> None:
        terminal.say(f"gateway of '{config.space.id}' listens at {gateway.url} (dashboard: {gateway.url}/dashboard)")

    run_gateway(config, state=state_dir(space_config), host=host, port=port, on_ready=announce)
