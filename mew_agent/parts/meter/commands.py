"""The commands of this part, for the table `mew_agent.commands`."""

from typing import Final

from mew_agent.cli.app.groups import Sections, rare_command

COMMANDS: Final[Sections] = {
    "Participants": {
        "meter": rare_command(
            "Report the context of an agent by relaying its model calls.", "mew_agent.parts.meter.run_meter:meter"
        )
    }
}
