"""The commands of this part, for the table `mew_agent.commands`."""

from typing import Final

from mew_agent.cli.app.groups import Sections, program_command

COMMANDS: Final[Sections] = {
    "Participants": {
        "serve a2a": program_command(
            "Offer agents, tools and people to A2A clients, each with a card.", "mew_agent.parts.a2a.serve_a2a:serve"
        )
    }
}
