"""The commands of this part, for the table `mew_agent.commands`."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, GroupEntry, Sections

COMMANDS: Final[Sections] = {
    "Participants": {
        "agent": GroupEntry(
            "",
            {
                "start": CommandEntry(
                    "Run a participant that needs no model.",
                    "mew_agent.parts.simple_agents.command:start",
                    is_everyday=False,
                )
            },
        )
    }
}
