"""`mew demo`: a complete space with agents that fill up and compact."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, Sections

COMMANDS: Final[Sections] = {
    "Start and stop": {
        "demo": CommandEntry(
            "Watch two agents fill up and compact; needs no key.",
            "mew_agent.parts.demo.demo:demo",
        )
    }
}
