"""The commands of this part, for the table `mew_agent.commands`."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, GroupEntry, Sections

COMMANDS: Final[Sections] = {
    "Join a space, or add to it": {
        "acp": GroupEntry(
            "Bring an ACP agent into a space, or serve an agent to an editor.",
            {
                "start": CommandEntry(
                    "Bring an ACP agent, such as Codex, into a space.", "mew_agent.parts.acp.command:start"
                ),
                "serve": CommandEntry(
                    "Serve an agent of a space to an editor that speaks ACP.", "mew_agent.parts.acp.command:serve"
                ),
            },
        )
    }
}
