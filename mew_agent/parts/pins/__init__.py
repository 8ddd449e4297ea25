"""`mew pin` and `unpin`: texts that stay in every prompt of an agent."""

from typing import Final

from mew_agent.cli.app.groups import Sections, rare_command

COMMANDS: Final[Sections] = {
    "Context windows": {
        "pin": rare_command(
            "Keep a text in every prompt of an agent, or list its pins.", "mew_agent.parts.pins.pins:pin"
        ),
        "unpin": rare_command("Remove a pinned text from an agent.", "mew_agent.parts.pins.pins:unpin"),
    }
}
