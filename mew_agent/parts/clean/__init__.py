"""`mew clean`: removes the files that past runs of a space wrote."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, OtherName, Sections

COMMANDS: Final[Sections] = {
    "Start and stop": {
        "clean": CommandEntry(
            "Remove the logs and FIFOs of past runs.",
            "mew_agent.parts.clean.command:clean",
            is_everyday=False,
        )
    },
    "Other names": {
        "space clean": OtherName("clean"),
    },
}
