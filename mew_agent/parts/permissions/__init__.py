"""`mew invite`, `grant` and `revoke`: changes of a running space that its space.yaml does not have."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, Sections

COMMANDS: Final[Sections] = {
    "Participants": {
        "invite": CommandEntry(
            "Invite a participant into the running space and print its token.",
            "mew_agent.parts.permissions.command:invite",
            is_everyday=False,
        ),
        "grant": CommandEntry(
            "Grant capabilities to a participant.", "mew_agent.parts.permissions.command:grant", is_everyday=False
        ),
        "revoke": CommandEntry(
            "Revoke capabilities granted to a participant.",
            "mew_agent.parts.permissions.command:revoke",
            is_everyday=False,
        ),
    }
}
