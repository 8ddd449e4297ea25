"""`mew mcp serve`: runs an MCP server that acts in a space as one of its participants."""

from typing import Annotated

import anyio

from mew_agent.bridge.settings import require_mcp
from mew_agent.cli.app import terminal
from mew_agent.cli.app.addresses import listening_failures
from mew_agent.cli.app.options import ConnectionOptions, option, with_option_groups
from mew_agent.cli.app.signals import run_until_terminated
from mew_agent.cli.remote.session import find_identity, require_person


@with_option_groups
def serve(
    *,
    http: Annotated[
        int | None, option("--http PORT", "Serve HTTP on this loopback port; 0 picks a free port.", min=0, max=65535)
    ] = None,
    connection: ConnectionOptions,
) -> None:
    """Run an MCP server that acts in a space.

    Its tools send chats, read the board, request compactions and call the tools of other participants as the space's
    person. It serves standard input and output, or HTTP. Over HTTP a client must send that person's token:
    `Authorization: Bearer TOKEN`.
    """
    require_mcp("`mew mcp serve`")
    from mew_agent.bridge.server import serve_stdio, serving_http  # needs the extra `mcp`
    from mew_agent.cli.programs.mcp_tools import make_server

    if http is None:
        serve_stdio(make_server(connection))
        return
    who = find_identity(connection)
    require_person(who)

    async def run() -> None:
        with listening_failures("--http", f"port {http}"):
            async with serving_http(make_server(connection), http, who.token) as url:
                terminal.print_line(
                    f"MCP server of '{who.space}' at {url}; clients act as {who.participant} with its token"
                )
                await anyio.sleep_forever()

    run_until_terminated(run)
