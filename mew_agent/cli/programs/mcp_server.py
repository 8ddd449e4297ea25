"""`mew mcp serve`: runs an MCP server that acts in a space as one of its participants."""

from typing import Annotated

from mew_agent.bridge.settings import require_mcp
from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import ConnectionOptions, option, with_option_groups
from mew_agent.cli.app.signals import run_until_terminated
from mew_agent.cli.remote.actions import GatewayActions
from mew_agent.cli.remote.session import find_identity


@with_option_groups
def serve(
    *,
    http: Annotated[
        int | None, option("--http PORT", "Serve HTTP on this loopback port; 0 picks a free port.", min=0, max=65535)
    ] = None,
    connection: ConnectionOptions,
) -> None:
    """Run an MCP server that acts in a space.

    Its tools send chats, read the board and request compactions as the space's person. It serves standard input and
    output, or HTTP. Over HTTP a client must send that person's token: `Authorization: Bearer TOKEN`.
    """
    require_mcp("`mew mcp serve`")
    from mew_agent.cli.programs.mcp_tools import make_server, serve_http, serve_stdio  # needs the extra `mcp`

    server = make_server(GatewayActions(connection))
    if http is None:
        serve_stdio(server)
        return
    who = find_identity(connection)

    def announce(url: str) -> None:
        terminal.print_line(f"MCP server of '{who.space}' at {url}; clients act as {who.participant} with its token")

    run_until_terminated(lambda: serve_http(server, http, who.token, announce))
