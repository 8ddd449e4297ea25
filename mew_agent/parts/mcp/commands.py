"""The commands of this part, for the table `mew_agent.commands`."""

from typing import Final

from mew_agent.cli.app.groups import GroupEntry, Sections, program_command

COMMANDS: Final[Sections] = {
    "Participants": {
        "serve mcp": program_command(
            "Run an MCP server that acts in a space.", "mew_agent.parts.mcp.bridge_and_serve:serve"
        ),
        "bridge": GroupEntry("Connect an MCP server to a space.", is_everyday=False),
        "bridge start": program_command(
            "Offer an MCP server's tools in a space.", "mew_agent.parts.mcp.bridge_and_serve:start"
        ),
    },
}
