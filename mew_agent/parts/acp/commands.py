"""The commands of this part, for the table `mew_agent.commands`."""

from typing import Final

from mew_agent.cli.app.groups import GroupEntry, Sections, program_command

COMMANDS: Final[Sections] = {
    "Participants": {
        "serve acp": program_command(
            "Serve an agent of a space to an editor that speaks ACP.", "mew_agent.parts.acp.start_and_serve:serve"
        ),
        "acp": GroupEntry("Bring an ACP agent into a space.", is_everyday=False),
        "acp start": program_command(
            "Bring an ACP agent, such as Codex, into a space.", "mew_agent.parts.acp.start_and_serve:start"
        ),
    },
}
