"""`mew sessions`: the stored conversations of agents."""

from typing import Final

from mew_agent.cli.app.groups import OtherName, Sections, rare_command

COMMANDS: Final[Sections] = {
    "Context windows": {
        "sessions": rare_command(
            "List, print or prune stored conversations.", "mew_agent.parts.sessions.command:sessions"
        )
    },
    "Other names": {
        "sessions export": OtherName("sessions"),
        "sessions list": OtherName("sessions"),
        "sessions prune": OtherName("sessions", options={"--days": "--prune-days", "--megabytes": "--prune-megabytes"}),
        "sessions show": OtherName("sessions --format text --last 20"),
    },
}
