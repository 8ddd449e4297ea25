"""`mew mcp serve` and `mew acp serve`: servers that an editor starts and that act in a space as its person."""

import os
import stat
from typing import TYPE_CHECKING, Annotated

import anyio

from mew_agent.cli.app import terminal
from mew_agent.cli.app.addresses import listening_failures
from mew_agent.cli.app.line_io import lines_of_stdin, read_lines
from mew_agent.cli.app.options import AllowHostOption, ConnectionOptions, TargetArgument, option, with_option_groups
from mew_agent.cli.remote.session import find_identity, require_person
from mew_agent.errors import ConfigError, require_extra
from mew_agent.participant.participant import Participant
from mew_agent.program import run_until_signal

if TYPE_CHECKING:
    from mew_agent.parts.mcp.server import OffersServer


@with_option_groups
def serve_mcp(
    *,
    http: Annotated[
        int | None, option("--http PORT", "Serve HTTP on this loopback port; 0 picks a free port.", min=0, max=65535)
    ] = None,
    allow_host: AllowHostOption = None,
    connection: ConnectionOptions,
) -> None:
    """Run an MCP server that acts in a space.

    Its tools send chats, read the board, request compactions and call the tools of other participants as the space's
    person. It serves standard input and output, or HTTP. Over HTTP a client must send that person's token:
    `Authorization: Bearer TOKEN`.
    """
    require_extra("mcp", "`mew mcp serve`")
    terminal.configure_logging("warning")
    from mew_agent.parts.mcp.server import serving_http  # needs the extra `mcp`
    from mew_agent.parts.mcp.space_offers import make_server

    if http is None:
        serve_over_stdio(make_server(connection))
        return
    from mew_listener.request_guard import Allowed

    who, allowed = find_identity(connection), Allowed(allow_host or ())
    require_person(who)

    async def run() -> None:
        with listening_failures("--http", f"port {http}"):
            async with serving_http(make_server(connection), http, who.token, allowed=allowed) as url:
                terminal.print_line(
                    f"MCP server of '{who.space}' at {url}; clients act as {who.participant} with its token"
                )
                await anyio.sleep_forever()

    run_until_signal(run)


def serve_over_stdio(server: "OffersServer") -> None:
    """Serve MCP over standard input and output until the input ends or a signal arrives."""
    from mew_agent.parts.mcp.server import serve_stdio  # needs the extra `mcp`

    async def run() -> None:
        async with read_lines(lines_of_stdin()) as lines:
            await serve_stdio(server, lines)

    run_until_signal(run)


@with_option_groups
def serve_acp(target: TargetArgument, connection: ConnectionOptions) -> None:
    """Serve an agent of a space to an editor that speaks ACP.

    It speaks the Agent Client Protocol on standard input and output. The editor acts as the space's person: it chats
    with the agent, sees how full its context is, and decides about what the agent proposes.
    """
    require_extra("acp", "an ACP agent")
    require_pipe(0, "standard input")
    require_pipe(1, "standard output")
    who = find_identity(connection)
    require_person(who)
    terminal.configure_logging("warning")

    async def run() -> None:
        from mew_agent.parts.acp.server import AcpServer  # needs the extra `acp`

        async with Participant(who.ws_url, space=who.space, id=who.participant, token=who.token) as me:
            await AcpServer(me, target).serve()

    run_until_signal(run)


def require_pipe(descriptor: int, name: str) -> None:
    """Raise `ConfigError` for a file or /dev/null: asyncio can wait for pipes, sockets and terminals only."""
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
        raise ConfigError(name, "no editor is connected to it", "a pipe; let an editor start `mew acp serve`")
