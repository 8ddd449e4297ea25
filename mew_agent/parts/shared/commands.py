"""The group `mew serve`: its command for models of the table, and the commands of parts that serve."""

from typing import Final

from mew_agent.cli.app.groups import GroupEntry, Sections, program_command

COMMANDS: Final[Sections] = {
    "Participants": {
        "serve": GroupEntry("Serve agents to programs (openai, a2a, mcp, acp), or a model."),
        "serve model": program_command(
            "Run the rehearsal model (canned replies), or a real one.", "mew_agent.parts.shared.serve_model:serve"
        ),
    },
}
