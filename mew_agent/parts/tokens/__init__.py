"""`mew token`: the tokens of a space."""

from typing import Final

from mew_agent.cli.app.groups import OtherName, Sections, rare_command

_ARGUMENT: Final = dict.fromkeys(("--participant", "--participant-id", "--id", "-p", "-i"), "")
"""The participant was an option of the commands that are now `mew token`."""

COMMANDS: Final[Sections] = {
    "Participants": {
        "token": rare_command(
            "Print, create, replace or revoke a token; without a participant, list the tokens.",
            "mew_agent.parts.tokens.command:token",
        )
    },
    "Other names": {
        "token create": OtherName("token", options=_ARGUMENT),
        "token list": OtherName("token"),
        "token revoke": OtherName("token --revoke", options=_ARGUMENT),
        "token rotate": OtherName("token --replace", options=_ARGUMENT),
    },
}
