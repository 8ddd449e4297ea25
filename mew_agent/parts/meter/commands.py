"""The commands of this part, for the table `mew_agent.commands`."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, Sections

COMMANDS: Final[Sections] = {
    "Participants": {
        "meter": CommandEntry(
            "Report the context of an agent by relaying its model calls.",
            "mew_agent.parts.meter.command:meter",
            is_everyday=False,
        )
    }
}
