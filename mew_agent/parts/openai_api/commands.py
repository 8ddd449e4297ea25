"""The commands of this part, for the table `mew_agent.commands`."""

from typing import Final

from mew_agent.cli.app.groups import Sections, program_command

COMMANDS: Final[Sections] = {
    "Participants": {
        "serve openai": program_command(
            "Offer the agents as models to OpenAI clients.", "mew_agent.parts.openai_api.serve_openai:serve"
        )
    }
}
