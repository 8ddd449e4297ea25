"""The commands of this part, for the table `mew_agent.commands`."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, GroupEntry, Sections

COMMANDS: Final[Sections] = {
    "Join a space, or add to it": {
        "bridge": GroupEntry(
            "Connect an MCP server to a space.",
            {"start": CommandEntry("Offer an MCP server's tools in a space.", "mew_agent.parts.mcp.command:start")},
        ),
        "mcp": GroupEntry(
            "Run an MCP server for a space.",
            {"serve": CommandEntry("Run an MCP server that acts in a space.", "mew_agent.parts.mcp.command:serve")},
        ),
    }
}
