"""`mew token`: the tokens of a space."""

from typing import Final

from mew_agent.cli.app.groups import OtherName, Sections, rare_command

_ARGUMENT: Final = dict.fromkeys(("--participant", "--participant-id", "--id", "-p", "-i"), "")
"""In the TypeScript CLI, the participant is an option."""

COMMANDS: Final[Sections] = {
    "Participants": {
        "token": rare_command(
            "Print, create, replace or revoke a token; without a participant, list the tokens.",
            "mew_agent.parts.tokens.tokens:token",
        )
    },
    "Other names": {
        "token create": OtherName("token", options=_ARGUMENT),
    },
}
