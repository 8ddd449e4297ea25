"""The policies of other systems by name, and `mew context simulate`, which replays a log through any policy."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, GroupEntry, Sections

COMMANDS: Final[Sections] = {
    "Context windows": {
        "context": GroupEntry("Try out policies."),
        "context simulate": CommandEntry(
            "Replay a log of context sizes through a policy.", "mew_agent.parts.policies.simulate:simulate"
        ),
    }
}
