"""`mew mcp`: a space for MCP clients."""

from typing import Annotated

import typer

from mew_agent.cli.app.options import Flags, help_when_alone, with_flags

app = typer.Typer(help="Offer a space to MCP clients.", invoke_without_command=True, callback=help_when_alone)


@app.command(short_help="Be an MCP server that speaks for a space.")
@with_flags
def serve(
    flags: Flags,
    http: Annotated[
        int | None,
        typer.Option("--http", min=0, max=65535, help="Serve streamable HTTP on this loopback port instead; 0: any."),
    ] = None,
) -> None:
    """Be an MCP server over standard input and output: say things in a space, read its board, ask for compactions.

    It acts as the person of the running space, as one-shot commands do. Over HTTP a client must bring that person's
    token: `Authorization: Bearer TOKEN`.
    """
    from mew_agent.bridge.settings import require_mcp
    from mew_agent.cli.app import terminal
    from mew_agent.cli.app.signals import run_until_terminated
    from mew_agent.cli.remote.identity import find_identity

    require_mcp("`mew mcp serve`")
    from mew_agent.cli.programs.mcp_tools import make_server, serve_http, serve_stdio
    from mew_agent.cli.remote.actions import Desk

    server = make_server(Desk(flags))
    if http is None:
        serve_stdio(server)
        return
    who = find_identity(flags)

    def ready(url: str) -> None:
        terminal.say(f"{who.participant} of '{who.space}' serves MCP clients at {url} (with their token)")

    run_until_terminated(lambda: serve_http(server, http, who.token, ready))
