"""`mew gateway start`: runs the gateway of one or more spaces in the foreground; and the gateway of a test."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

from mew_spaces.config.loading import load_space, parse_space
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.auth import state_dir
from mew_spaces.gateway.certificate import TlsFiles
from mew_spaces.gateway.gateway import HostedSpace, run_gateway, serve_gateway
from mew_spaces.gateway.gateway import RunningGateway as RunningGateway
from mew_spaces.gateway.proxies import TrustedProxies

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import on_backplane, space_config_path
from mew_agent.cli.app.options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    BackplaneOption,
    HostOption,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    PortOption,
    option,
)
from mew_agent.cli.programs.program_control import CommandLinePrograms
from mew_agent.errors import ConfigError


def start(
    *,
    port: PortOption = DEFAULT_PORT,
    space_config: Annotated[
        list[Path] | None,
        option("--config, -c, --space-config, -s FILE", "Path of space.yaml (default: this folder's); repeatable."),
    ] = None,
    host: HostOption = DEFAULT_HOST,
    tls_cert: Annotated[
        Path | None, option("--tls-cert FILE", "Certificate in PEM (default: gateway.tls_cert of space.yaml).")
    ] = None,
    tls_key: Annotated[Path | None, option("--tls-key FILE", "Private key of the certificate, in PEM.")] = None,
    trusted_proxy: Annotated[
        list[str] | None, option("--trusted-proxy NETWORK", "Proxy whose X-Forwarded headers count; repeatable.")
    ] = None,
    backplane: BackplaneOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = None,
    auto_start: Annotated[bool, option("--auto-start/--no-auto-start", hidden=True)] = False,
) -> None:
    """Run the gateway of one or more spaces.

    Starts no participants; `mew up` does.
    """
    terminal.use_log_format(log_format)
    terminal.configure_logging(log_level)
    configs = space_config or [space_config_path(None, None)]
    states = [state_dir(path) for path in configs]
    _refuse_shared_folders(configs, states)
    first, *others = (
        HostedSpace(on_backplane(load_space(path), backplane), state)
        for path, state in zip(configs, states, strict=True)
    )
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert, --tls-key", "one is missing", "both, or neither")
    try:
        TrustedProxies(trusted_proxy or ())
    except ValueError as error:
        raise ConfigError("--trusted-proxy", str(error), "an address or a network like 10.0.0.0/8") from None
    tls = TlsFiles(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    if auto_start:
        terminal.warn("`mew gateway start` starts no participants; `mew up` starts those with auto_start")

    def announce(gateway: RunningGateway) -> None:
        gateway.registry.programs[first.config.space.id] = CommandLinePrograms(states[0], first.config)
        names = ", ".join(f"'{one.config.space.id}'" for one in (first, *others))
        dashboard = f"{gateway.config.gateway.public_url or gateway.url}/dashboard"
        terminal.print_line(f"gateway of {names} listens at {gateway.url} (dashboard: {dashboard})")

    run_gateway(
        first.config,
        state=states[0],
        host=host,
        port=port,
        others=others,
        on_ready=announce,
        tls=tls,
        trusted_proxies=trusted_proxy or (),
    )


def serve_for_tests(space: str | Path) -> AbstractAsyncContextManager[RunningGateway]:
    """The gateway of a space, given as the text or the path of its space.yaml, on a free port; it writes no files."""
    return serve_gateway(load_space(space) if isinstance(space, Path) else parse_space(space))


def _refuse_shared_folders(configs: list[Path], states: list[Path]) -> None:
    """Spaces in one folder would share tokens, invitations and logs."""
    for index, state in enumerate(states):
        if state in states[:index]:
            other = configs[states.index(state)]
            raise SpacesError(f"{configs[index]}: is in the same folder as {other}; give each space its own folder")
