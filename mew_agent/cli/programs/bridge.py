"""`mew bridge`: an MCP server as a participant, in the foreground."""

from typing import TYPE_CHECKING, Annotated

import typer

from mew_agent.cli.app.options import (
    Flags,
    LogLevel,
    LogLevelFlag,
    OwnGatewayFlag,
    OwnSpaceFlag,
    OwnTokenFlag,
    help_when_alone,
)

if TYPE_CHECKING:
    from mew_agent.bridge.settings import BridgeSettings

app = typer.Typer(help="Bring an MCP server into a space.", invoke_without_command=True, callback=help_when_alone)

_OURS_TO_GIVE = "Accepted for scripts; what a bridge may send is said in space.yaml."


@app.command(short_help="Offer an MCP server's tools in a space.")
def start(
    gateway: OwnGatewayFlag = None,
    space: OwnSpaceFlag = None,
    participant: Annotated[
        str | None, typer.Option("--participant-id", "-p", help="Who the server is in the space.")
    ] = None,
    token: OwnTokenFlag = None,
    mcp_command: Annotated[str | None, typer.Option("--mcp-command", "-m", help="The MCP server's program.")] = None,
    mcp_args: Annotated[
        str | None, typer.Option("--mcp-args", help="Its arguments: a list with commas, or a JSON list.")
    ] = None,
    mcp_env: Annotated[
        str | None, typer.Option("--mcp-env", help="Its environment: K=V,K=V, or a JSON object.")
    ] = None,
    mcp_cwd: Annotated[str | None, typer.Option("--mcp-cwd", help="Its folder; else this one.")] = None,
    mcp_url: Annotated[str | None, typer.Option("--mcp-url", help="Instead: a server at this URL.")] = None,
    mcp_header: Annotated[
        list[str] | None, typer.Option("--mcp-header", help="NAME: VALUE, sent with every request; may be repeated.")
    ] = None,
    init_timeout: Annotated[
        int, typer.Option("--init-timeout", min=1, help="Milliseconds it may take to be ready.")
    ] = 30_000,
    request_timeout: Annotated[
        int, typer.Option("--request-timeout", min=1, help="Milliseconds an answer may take.")
    ] = 300_000,
    reconnect: Annotated[str, typer.Option("--reconnect", help="Start it again when it ends: true or false.")] = "true",
    max_reconnects: Annotated[int, typer.Option("--max-reconnects", min=0, help="How often in a row.")] = 3,
    capabilities: Annotated[str | None, typer.Option("--capabilities", help=_OURS_TO_GIVE)] = None,
    log_level: LogLevelFlag = LogLevel.INFO,
) -> None:
    """Start an MCP server, or reach one, and offer its tools, resources and prompts in a space.

    Gateway, space and token come from the environment or the running space of this folder unless they are given;
    `mew up` hands over the server in MEW_BRIDGE_CONFIG.
    """
    import logging
    import os

    from mew_agent.bridge.settings import BRIDGE_CONFIG, require_mcp
    from mew_agent.cli.app import terminal
    from mew_agent.cli.app.signals import run_until_terminated
    from mew_agent.cli.remote.identity import find_identity

    handed_over = os.environ.get(BRIDGE_CONFIG)
    if mcp_command is None and mcp_url is None and handed_over is not None:
        settings = _read_handed_over(handed_over)
    else:
        server = _server(mcp_command, mcp_args, mcp_env, mcp_cwd, mcp_url, mcp_header or [])
        settings = _settings(
            {
                "server": server,
                "init_timeout_seconds": init_timeout / 1000,
                "request_timeout_seconds": request_timeout / 1000,
                "reconnect": _switch(reconnect),
                "max_reconnects": max_reconnects,
            }
        )
    if capabilities is not None:
        _json("--capabilities", capabilities)
    who = find_identity(Flags(participant, token, gateway, space))
    require_mcp()
    terminal.configure_logging(log_level)
    if log_level != LogLevel.DEBUG:
        logging.getLogger("mcp").setLevel(logging.WARNING)  # it tells of every request, and of session ids

    async def live() -> None:
        from mew_agent.bridge.supervisor import Bridge, run_bridge

        def joined(bridge: Bridge) -> None:
            terminal.say(
                f"{who.participant} has joined '{who.space}' at {who.gateway}, for the MCP server {bridge.server}"
            )

        await run_bridge(
            settings, gateway=who.ws_url, space=who.space, id=who.participant, token=who.token, joined=joined
        )

    run_until_terminated(live)


def _server(
    command: str | None, args: str | None, env: str | None, cwd: str | None, url: str | None, headers: list[str]
) -> dict[str, object]:
    """The server as settings. Raises `ConfigError`."""
    from mew_agent.errors import ConfigError

    if (command is None) == (url is None):
        raise ConfigError("--mcp-command", "which MCP server?", "--mcp-command PROGRAM, or --mcp-url URL")
    if url is not None:
        return {"transport": "http", "url": url, "headers": dict(_header(one) for one in headers)}
    return {
        "transport": "stdio",
        "command": command,
        "args": _arguments(args or ""),
        "env": _environment(env or ""),
        "cwd": cwd,
    }


def _arguments(text: str) -> list[str]:
    if text.lstrip().startswith("["):
        from mew_agent.errors import ConfigError

        value = _json("--mcp-args", text)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ConfigError("--mcp-args", "the JSON list holds more than texts", '["--flag", "value"]')
        return value
    return text.split(",") if text else []


def _environment(text: str) -> dict[str, str]:
    from mew_agent.errors import ConfigError

    if text.lstrip().startswith("{"):
        value = _json("--mcp-env", text)
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise ConfigError("--mcp-env", "the JSON object holds more than texts", '{"KEY": "value"}')
        return value
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    for key, mark, _ in pairs:
        if not key or not mark:
            raise ConfigError("--mcp-env", f"'{key}' has no value", "K=V,K=V, or a JSON object")
    return {key: value for key, _, value in pairs}


def _header(text: str) -> tuple[str, str]:
    name, mark, value = text.partition(":")
    if not mark or not name.strip():
        from mew_agent.errors import ConfigError

        raise ConfigError("--mcp-header", f"'{name}' has no value", "NAME: VALUE")
    return name.strip(), value.strip()


def _switch(text: str) -> bool:
    from mew_agent.errors import ConfigError

    match text.lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
        case _:
            raise ConfigError("--reconnect", f"'{text}' is neither", "true or false")


def _read_handed_over(text: str) -> "BridgeSettings":
    from mew_agent.bridge.settings import BRIDGE_CONFIG

    return _settings(_json(BRIDGE_CONFIG, text), where=BRIDGE_CONFIG)


def _settings(values: object, where: str = "mew bridge start") -> "BridgeSettings":
    from pydantic import ValidationError

    from mew_agent.bridge.settings import BridgeSettings
    from mew_agent.errors import ConfigError

    try:
        return BridgeSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(step) for step in first["loc"] if step not in ("stdio", "http"))
        raise ConfigError(where, f"{place}: {first['msg']}") from None


def _json(where: str, text: str) -> object:
    import json

    from mew_agent.errors import ConfigError

    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(where, f"is no JSON: {error}") from None
