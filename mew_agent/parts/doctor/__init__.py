"""`mew doctor`: installed programs and packages, and missing ones of the space in this folder."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, Sections

COMMANDS: Final[Sections] = {
    "Start and stop": {
        "doctor": CommandEntry(
            "List installed programs and extras, and commands to add others.",
            "mew_agent.parts.doctor.doctor:doctor",
        )
    }
}
