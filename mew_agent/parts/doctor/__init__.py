"""`mew doctor`: what is installed, and what the space of this folder lacks."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, Sections

COMMANDS: Final[Sections] = {
    "Start and stop": {
        "doctor": CommandEntry(
            "List what is installed, and how to install the rest.",
            "mew_agent.parts.doctor.command:doctor",
        )
    }
}
