"""`mew bridge start`: connects an MCP server to a space. `mew serve mcp`: an MCP server that acts in a space."""

import json
import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
from mew_settings.setting_problems import first_problem
from pydantic import ValidationError

from mew_agent.cli.app import terminal
from mew_agent.cli.app.addresses import AllowedCallers, listening_failures
from mew_agent.cli.app.locate import OWN_COMMAND
from mew_agent.cli.app.options import ConnectionOptions, LogLevelOption, ProgramConnection, option
from mew_agent.cli.remote.identity import Identity, find_identity, require_person
from mew_agent.errors import ConfigError
from mew_agent.extras import require_extra
from mew_agent.participant.participant import Participant
from mew_agent.parts.mcp.settings import BRIDGE_CONFIG, PACKAGE, BridgeSettings
from mew_agent.parts.shared.line_io import lines_of_stdin, read_lines
from mew_agent.program import run_until_signal
from mew_agent.tracing import enable_by_environment

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def start(
    *,
    mcp_command: Annotated[str | None, option("--mcp-command, -m PROGRAM", "Start this MCP server.")] = None,
    mcp_args: Annotated[str | None, option("--mcp-args LIST", "Its arguments: A,B or a JSON list.")] = None,
    mcp_env: Annotated[str | None, option("--mcp-env LIST", "Its environment: K=V,K=V or a JSON object.")] = None,
    mcp_cwd: Annotated[str | None, option("--mcp-cwd FOLDER", "Its working folder (default: this one).")] = None,
    mcp_url: Annotated[str | None, option("--mcp-url URL", "Connect to this MCP server instead.")] = None,
    mcp_header: Annotated[
        list[str] | None, option("--mcp-header HEADER", "NAME: VALUE to send with each request; repeatable.")
    ] = None,
    init_timeout: Annotated[
        int, option("--init-timeout MS", "Startup timeout in milliseconds, as in the TypeScript CLI.", min=1)
    ] = 30_000,
    request_seconds: Annotated[float, option("--request-timeout SECONDS", "Request timeout.", min=0.001)] = 300.0,
    reconnect: Annotated[str, option("--reconnect BOOL", "Restart the server when it ends.")] = "true",
    max_reconnects: Annotated[int, option("--max-reconnects N", "Maximum restarts in a row.", min=0)] = 3,
    capabilities: Annotated[str | None, option("--capabilities JSON", hidden=True)] = None,
    log_level: LogLevelOption = "info",
    connection: ProgramConnection,
) -> None:
    """Offer an MCP server's tools in a space.

    Its resources and prompts are offered too. `mew up` passes the settings of a bridge in MEW_BRIDGE_CONFIG.
    """
    passed = os.environ.get(BRIDGE_CONFIG)
    if mcp_command is None and mcp_url is None and passed is not None:
        settings = _settings(_parse_json(BRIDGE_CONFIG, passed), where=BRIDGE_CONFIG)
    else:
        server = _server(mcp_command, mcp_args, mcp_env, mcp_cwd, mcp_url, mcp_header or [])
        settings = _settings(
            {
                "server": server,
                "init_timeout": init_timeout,
                "request_seconds": request_seconds,
                "reconnect": _parse_switch(reconnect),
                "max_reconnects": max_reconnects,
            }
        )
    if capabilities is not None:
        _parse_json("--capabilities", capabilities)
    who = find_identity(connection)
    require_extra("mcp", "the MCP bridge", PACKAGE)
    terminal.configure_logging(log_level)
    enable_by_environment()
    if log_level != "debug":
        logging.getLogger("mcp").setLevel(logging.WARNING)  # it logs every request, and session ids

    async def run() -> None:
        from mew_agent.parts.mcp.bridge import Bridge, run_bridge  # needs the extra `mcp`

        def joined(bridge: Bridge) -> None:
            terminal.print_line(f"{who.participant} joined '{who.space}' at {who.gateway} with {bridge.server}")

        await run_bridge(
            settings, gateway=who.ws_url, space=who.space, id=who.participant, token=who.token, joined=joined
        )

    run_until_signal(run)


def serve(
    *,
    http: Annotated[
        int | None, option("--http PORT", "Serve HTTP on this loopback port; 0 picks a free port.", min=0, max=65535)
    ] = None,
    callers: AllowedCallers,
    connection: ConnectionOptions,
) -> None:
    """Run an MCP server that acts in a space.

    Its tools send chats, read the board, request compactions and call the tools of other participants as the space's
    person. It serves standard input and output, or HTTP. Over HTTP a client must send that person's token:
    `Authorization: Bearer TOKEN`.
    """
    require_extra("mcp", "`mew serve mcp`", PACKAGE)
    terminal.configure_logging("warning")
    from mew_agent.parts.mcp.offers_server import serve_stdio, serving_http  # needs the extra `mcp`
    from mew_agent.parts.mcp.space_offers import make_server

    if http is None:
        server = make_server(connection)

        async def run_on_stdio() -> None:
            async with read_lines(lines_of_stdin()) as lines:
                await serve_stdio(server, lines)

        run_until_signal(run_on_stdio)
        return
    who, allowed = find_identity(connection), callers.as_allowed()
    require_person(who)

    async def run() -> None:
        with listening_failures("--http", f"port {http}"):
            async with serving_http(make_server(connection), http, who.token, allowed=allowed) as url:
                terminal.print_line(
                    f"MCP server of '{who.space}' at {url}; clients act as {who.participant} with its token"
                )
                await anyio.sleep_forever()

    run_until_signal(run)


@asynccontextmanager
async def serve_space_tools(me: Participant, who: Identity) -> AsyncIterator[dict[str, Any]]:
    """Serve the tools of `mew serve mcp`, as `me`, to its program only. Yields the server's entry for `session/new`.

    The program gets a token for this server only, never the participant's.
    """
    from mew_agent.parts.mcp.offers_server import serving_http  # needs the extra `mcp`
    from mew_agent.parts.mcp.space_offers import make_server

    token = secrets.token_urlsafe()
    connection = ProgramConnection(who.participant, who.gateway, who.space, token=who.token)
    async with serving_http(make_server(connection, me), 0, token) as url:
        headers = [{"name": "Authorization", "value": f"Bearer {token}"}]
        yield {"type": "http", "name": "mew", "url": url, "headers": headers}


def _server(
    command: str | None, args: str | None, env: str | None, cwd: str | None, url: str | None, headers: list[str]
) -> dict[str, object]:
    """Return the server as settings. Raises `ConfigError`."""
    if (command is None) == (url is None):
        raise ConfigError("--mcp-command", "give one MCP server", "--mcp-command PROGRAM or --mcp-url URL")
    if url is not None:
        return {"url": url, "headers": dict(_parse_header(one) for one in headers)}
    arguments = _parse_arguments(args or "")
    if command == "mew":  # this installation, not the one in PATH
        command, *own = OWN_COMMAND
        arguments = [*own, *arguments]
    return {
        "command": command,
        "args": arguments,
        "env": _parse_environment(env or ""),
        "cwd": cwd,
    }


def _parse_arguments(text: str) -> list[str]:
    if not text.lstrip().startswith("["):
        return text.split(",") if text else []
    value = _parse_json("--mcp-args", text)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ConfigError("--mcp-args", "is not a JSON list of strings", '["--flag", "value"]')
    return value


def _parse_environment(text: str) -> dict[str, str]:
    if text.lstrip().startswith("{"):
        value = _parse_json("--mcp-env", text)
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise ConfigError("--mcp-env", "is not a JSON object of strings", '{"KEY": "value"}')
        return value
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    for key, mark, _ in pairs:
        if not key or not mark:
            raise ConfigError("--mcp-env", f"'{key}' has no value", "K=V,K=V or a JSON object")
    return {key: value for key, _, value in pairs}


def _parse_header(text: str) -> tuple[str, str]:
    name, mark, value = text.partition(":")
    if not mark or not name.strip():
        raise ConfigError("--mcp-header", f"'{name}' has no value", "NAME: VALUE")
    return name.strip(), value.strip()


def _parse_switch(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ConfigError("--reconnect", f"is '{text}'", "true or false")
    return text.lower() in _TRUE


def _settings(values: object, where: str = "mew bridge start") -> BridgeSettings:
    try:
        return BridgeSettings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(where, first_problem(error)) from None


def _parse_json(where: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(where, f"is not JSON: {error}") from None
