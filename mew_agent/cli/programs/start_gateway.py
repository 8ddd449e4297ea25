"""Runs the gateway of one or more spaces: for `mew gateway start`, and inside a Python program."""

import os
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

from mew_settings.plugins import load_only
from mew_settings.private_files import make_private_folder, replace_private_file
from mew_spaces.config.loading import load_space, parse_space
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.auth import state_dir
from mew_spaces.gateway.gateway import HostedSpace, run_gateway, serve_gateway
from mew_spaces.gateway.gateway import RunningGateway as RunningGateway
from mew_spaces.launch.processes import started_mark

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import (
    REFERENCE_NOTICE,
    in_mode,
    on_backplane,
    space_config_path,
)
from mew_agent.cli.app.options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    BackplaneOption,
    HostOption,
    LogLevelOption,
    PortOption,
    option,
)

DRAIN_SECONDS = 5.0


def start(
    *,
    port: PortOption = DEFAULT_PORT,
    space_config: Annotated[
        list[Path] | None,
        option("--config, -c, --space-config, -s FILE", "Path of space.yaml (default: this folder's); repeatable."),
    ] = None,
    host: HostOption = DEFAULT_HOST,
    backplane: BackplaneOption = None,
    drain_seconds: Annotated[
        float, option("--drain-seconds N", "Time for members to move to other gateways when it is stopped.", min=0)
    ] = DRAIN_SECONDS,
    log_level: LogLevelOption = "info",
    auto_start: Annotated[bool, option("--auto-start/--no-auto-start", hidden=True)] = False,
) -> None:
    """Run the gateway of one or more spaces.

    Starts no participants; `mew up` does. If other gateways serve the space, SIGTERM and Ctrl-C let the members
    move to them first.
    """
    terminal.configure_logging(log_level)
    configs = space_config or [space_config_path(None, None)]
    states = [state_dir(path) for path in configs]
    _refuse_shared_folders(configs, states)
    first, *others = (
        HostedSpace(in_mode(on_backplane(load_space(path), backplane), os.environ), state)
        for path, state in zip(configs, states, strict=True)
    )
    if any(one.config.is_reference for one in (first, *others)):
        terminal.warn(REFERENCE_NOTICE)
    if auto_start:
        terminal.warn("`mew gateway start` starts no participants; `mew up` starts those with auto_start")

    def announce(gateway: RunningGateway) -> None:
        if (control := load_only("mew_agent.program_controls")) is not None:
            gateway.registry.programs[first.config.space.id] = control(states[0], first.config)
        names = ", ".join(f"'{one.config.space.id}'" for one in (first, *others))
        dashboard = f"{gateway.config.gateway.public_url or gateway.url}/dashboard"
        is_wildcard = gateway.address.connect_host != gateway.host
        also = f" and at all addresses of this machine ({gateway.host})" if is_wildcard else ""
        terminal.print_line(f"gateway of {names} listens at {gateway.url}{also} (dashboard: {dashboard})")

        for state in states:
            running.enter_context(_recorded(state, gateway))

    with ExitStack() as running:
        run_gateway(
            first.config,
            state=states[0],
            host=host,
            port=port,
            others=others,
            on_ready=announce,
            drain_seconds=drain_seconds,
        )


@contextmanager
def _recorded(state: Path, gateway: RunningGateway) -> Iterator[None]:
    """Record this process and its address for commands in the space's folder while the block runs."""
    path = state / "gateways" / f"{gateway.port}.pid"
    make_private_folder(path.parent)
    replace_private_file(path, f"{os.getpid()} {started_mark(os.getpid())} {gateway.url}\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def serve_in_process(
    space: str | Path, *, host: str = DEFAULT_HOST, port: int = 0
) -> AbstractAsyncContextManager[RunningGateway]:
    """Serve the gateway of a space, given as the text or the path of its space.yaml; it writes no files.

    Port 0 picks a free port.
    """
    return serve_gateway(load_space(space) if isinstance(space, Path) else parse_space(space), host=host, port=port)


def _refuse_shared_folders(configs: list[Path], states: list[Path]) -> None:
    """Refuse two spaces in one folder: they would share tokens, invitations and logs."""
    for index, state in enumerate(states):
        if state in states[:index]:
            other = configs[states.index(state)]
            raise SpacesError(f"{configs[index]}: is in the same folder as {other}; give each space its own folder")
