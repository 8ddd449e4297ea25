"""`mew token`: the tokens of a space."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, Sections

COMMANDS: Final[Sections] = {
    "Participants": {
        "token": CommandEntry(
            "Print, create, replace or revoke a token; without a participant, list the tokens.",
            "mew_agent.parts.tokens.command:token",
            is_everyday=False,
        )
    }
}
