"""`mcp_server:` in a space.yaml: a bridge that offers the tools of an MCP server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from mew_settings.participant_types import AddedBy, ParticipantStart, ParticipantType, ProgramStart, StartCheck

from mew_agent.parts.mcp.settings import BRIDGE_CONFIG, PACKAGE, BridgeOptions, McpServerSettings


class BridgeType(ParticipantType):
    """Starts `mew bridge start`, which starts the server or connects to it."""

    settings = McpServerSettings
    more_keys: ClassVar = {"bridge_config": (BridgeOptions, BridgeOptions())}
    label = "mcp-bridge"
    role = "tool"
    answers_chats = False
    extra = ("mcp", "the MCP bridge", PACKAGE)
    variable = BRIDGE_CONFIG
    with_variables = ("command", "args", "env", "url", "headers")
    added_by = AddedBy("--mcp", "URL", "MCP server", "Offer the tools of the MCP server at URL.")

    def start(self, start: ParticipantStart) -> ProgramStart:
        """Return the command, and the settings that it reads from its environment."""
        server = start.settings
        if "url" in server:
            reached: dict[str, Any] = {"url": server["url"], "headers": server["headers"]}
        else:
            program, *arguments = start.program(server["command"], server["args"])
            cwd = str(start.folder / server["cwd"]) if server.get("cwd") else None
            reached = {"command": program, "args": arguments, "env": server["env"], "cwd": cwd}
        settings = {"server": reached, **server["bridge_config"]}
        return ProgramStart(start.program("mew", ("bridge", "start", *start.joins)), settings)

    def section_from(self, text: str) -> Any:
        """Return the settings of a server with this URL."""
        return {"url": text}

    def check(self, check: StartCheck) -> None:
        """Check the program of the server and its folder. The bridge itself is ours."""
        from mew_agent.cli.space.start_checks import check_command

        server = (check.start.settings or {})["server"]
        if "command" in server:
            search = server["env"].get("PATH", check.search)
            place, folder = (check.name, "mcp_server"), Path(server["cwd"] or check.folder)
            check_command(check.path, place, server["command"], folder, search)

    def needs(self, section: McpServerSettings) -> Iterator[str]:
        """Yield the extra, and the program of the server."""
        yield from super().needs(section)
        if section.command is not None:
            yield section.command


BRIDGE = BridgeType()
