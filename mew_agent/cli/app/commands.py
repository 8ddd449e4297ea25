"""Every command of `mew`: its name, aliases, one-line summary, and function.

`mew --help` lists the everyday commands, at most 24, and `mew help all` the others too.

Parts and other packages add theirs by entry points of the group `mew_agent.commands`, each a `Sections`. Nothing here
imports a command, so `mew --help` answers at once. A summary is also the first line of the command's own help; a test
compares the two.
"""

from collections.abc import Iterable
from typing import Final

from mew_settings.plugins import load_table

from mew_agent.cli.app.groups import CommandEntry, Entry, GroupEntry, OtherName, Sections, program_command, rare_command

_CORE: Final[Sections] = {
    "Start and stop": {
        "init": CommandEntry("Create a space in this folder from a template.", "mew_agent.cli.space.init:init"),
        "up": CommandEntry(
            "Start a space: its gateway and its participants.", "mew_agent.cli.space.up:up", detaches=True
        ),
        "down": CommandEntry("Stop the running space of this folder.", "mew_agent.cli.space.running:down"),
        "restart": CommandEntry(
            "Restart the running space, or one participant.", "mew_agent.cli.space.restart:restart"
        ),
        "gateway": GroupEntry("Run a gateway.", is_everyday=False),
        "gateway start": program_command(
            "Run the gateway of one or more spaces.", "mew_agent.cli.programs.start_gateway:start"
        ),
    },
    "Watch": {
        "status": CommandEntry(
            "Show each agent's context usage and the requests to you.",
            "mew_agent.cli.remote.status:show_status",
        ),
        "logs": CommandEntry("Print the logs of a space's programs.", "mew_agent.cli.space.running:logs"),
        "history": CommandEntry(
            "Print recent chats of a space, or envelopes of other kinds.",
            "mew_agent.cli.remote.show_history:show_history",
        ),
        "dashboard": CommandEntry("Print the address of the dashboard.", "mew_agent.cli.space.running:dashboard"),
    },
    "Talk and decide": {
        "chat": CommandEntry("Send a message and print the answer.", "mew_agent.cli.remote.chat:chat"),
        "cancel": CommandEntry("Cancel your open requests to agents.", "mew_agent.cli.remote.cancelling:cancel"),
        "proposals": CommandEntry(
            "List the proposals that need a decision.", "mew_agent.cli.remote.decisions:show_proposals"
        ),
        "approve": CommandEntry("Approve a proposal: make its request.", "mew_agent.cli.remote.decisions:approve"),
        "reject": CommandEntry("Reject a proposal.", "mew_agent.cli.remote.decisions:reject"),
    },
    "Context windows": {
        "compact": CommandEntry(
            "Compact a participant's context and report the tokens freed.",
            "mew_agent.cli.remote.control_commands:compact",
        ),
        "forget": rare_command(
            "Drop messages from one end of a participant's history.", "mew_agent.cli.remote.control_commands:forget"
        ),
        "clear": rare_command("Clear a participant's history.", "mew_agent.cli.remote.control_commands:clear"),
        "reset": rare_command(
            "Clear a participant's history and close its streams.", "mew_agent.cli.remote.control_commands:reset"
        ),
    },
    "Participants": {
        "agent": GroupEntry("Add or remove a participant, or run an agent."),
        "agent add": CommandEntry("Add a participant, even while the space runs.", "mew_agent.cli.space.add:add"),
        "agent remove": CommandEntry("Remove a participant from the space.", "mew_agent.cli.space.remove:remove"),
        "agent run": program_command("Run an agent until it is shut down.", "mew_agent.cli.programs.run_agent:run"),
        "pause": CommandEntry("Pause a participant.", "mew_agent.cli.remote.control_commands:pause"),
        "resume": CommandEntry("Resume a paused participant.", "mew_agent.cli.remote.control_commands:resume"),
        "shutdown": CommandEntry("Shut a participant down.", "mew_agent.cli.remote.control_commands:shutdown"),
        "run": rare_command(
            "Run your own program as a participant.",
            "mew_agent.cli.programs.run_program:run_program",
            passes_options=True,
            has_outcome=False,
        ),
    },
    "Help": {
        "help": rare_command("Show the help of a command.", "mew_agent.cli.app.help_pages:show_help", has_outcome=False)
    },
    "Other names": {
        "space up": OtherName("up"),
        "space down": OtherName("down"),
        "space status": OtherName("status"),
        # Names from docker, gh and other tools.
        "add": OtherName("agent add"),
        "agent list": OtherName("status"),
        "agent ls": OtherName("status"),
        "agent rm": OtherName("agent remove"),
        "ask": OtherName("chat"),
        "exec": OtherName("chat"),
        "kill": OtherName("shutdown"),
        "list": OtherName("status"),
        "ls": OtherName("status"),
        "open": OtherName("dashboard --open"),
        "ps": OtherName("status"),
        "remove": OtherName("agent remove"),
        "rm": OtherName("agent remove"),
        "send": OtherName("chat"),
        "start": OtherName("up", "restart"),
        "stop": OtherName("down", "shutdown"),
        "top": OtherName("status --watch"),
        "kick": OtherName("agent remove"),
        "unpause": OtherName("resume"),
        "version": OtherName("--version"),
    },
}


def _merged(all_sections: Iterable[Sections]) -> Sections:
    """Return all commands by section. If two have the same name, the first wins."""
    merged: dict[str, dict[str, Entry]] = {}
    for sections in all_sections:
        for title, entries in sections.items():
            section = merged.setdefault(title, {})
            for name, entry in entries.items():
                section.setdefault(name, entry)
    return merged


COMMANDS: Final = _merged([_CORE, *load_table("mew_agent.commands").values()])
