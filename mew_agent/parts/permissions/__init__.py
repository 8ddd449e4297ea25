"""`mew invite`, `grant` and `revoke`: changes of a running space outside its space.yaml."""

from typing import Final

from mew_agent.cli.app.groups import Sections, rare_command

COMMANDS: Final[Sections] = {
    "Participants": {
        "invite": rare_command(
            "Invite a participant into the running space and print its token.",
            "mew_agent.parts.permissions.invite_and_grant:invite",
        ),
        "grant": rare_command(
            "Grant capabilities to a participant.", "mew_agent.parts.permissions.invite_and_grant:grant"
        ),
        "revoke": rare_command(
            "Revoke capabilities granted to a participant.", "mew_agent.parts.permissions.invite_and_grant:revoke"
        ),
    }
}
