"""The commands of this part, for the table `mew_agent.commands`."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, GroupEntry, Sections

COMMANDS: Final[Sections] = {
    "Join a space, or add to it": {
        "agent": GroupEntry(
            "Run an agent, or add a participant.",
            {
                "start": CommandEntry(
                    "Run a participant that needs no model.", "mew_agent.parts.simple_agents.command:start"
                )
            },
        )
    }
}
