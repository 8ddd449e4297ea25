"""`mew clean`: removes the files that past runs of a space wrote."""

from typing import Final

from mew_agent.cli.app.groups import OtherName, Sections, rare_command

COMMANDS: Final[Sections] = {
    "Start and stop": {
        "clean": rare_command("Remove the logs and FIFOs of past runs.", "mew_agent.parts.clean.clean:clean")
    },
    "Other names": {
        "space clean": OtherName("clean"),
    },
}
