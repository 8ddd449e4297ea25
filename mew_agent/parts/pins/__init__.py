"""`mew pin` and `unpin`: texts that stay in every prompt of an agent."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, Sections

COMMANDS: Final[Sections] = {
    "Context windows": {
        "pin": CommandEntry(
            "Keep a text in every prompt of an agent, or list its pins.",
            "mew_agent.parts.pins.command:pin",
            is_everyday=False,
        ),
        "unpin": CommandEntry(
            "Remove a pinned text from an agent.", "mew_agent.parts.pins.command:unpin", is_everyday=False
        ),
    }
}
