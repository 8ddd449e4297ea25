"""`mew sessions`: the stored conversations of agents."""

from typing import Final

from mew_agent.cli.app.groups import Sections, rare_command

COMMANDS: Final[Sections] = {
    "Context windows": {
        "sessions": rare_command(
            "List, print or prune stored conversations.", "mew_agent.parts.sessions.list_sessions:sessions"
        )
    },
}
