"""`mew sessions`: the stored conversations of agents."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, Sections

COMMANDS: Final[Sections] = {
    "Context windows": {
        "sessions": CommandEntry(
            "List, print or prune stored conversations.",
            "mew_agent.parts.sessions.command:sessions",
            is_everyday=False,
        )
    }
}
