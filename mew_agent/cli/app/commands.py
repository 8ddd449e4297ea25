"""Every command of `mew`: its name, its one-line summary, and the function that implements it; and other names.

`mew --help` lists the everyday commands, at most 24, and `mew help all` the others too.

Parts and other packages add theirs by entry points of the group `mew_agent.commands`, each a `Sections`. Nothing here
imports a command, so `mew --help` answers at once. A summary is also the first line of the command's own help; a test
compares the two.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from mew_settings.plugins import load_table

from mew_agent.cli.app.groups import CommandEntry, Entry, GroupEntry, OtherName, Sections


def _command(summary: str, implementation: str, **settings: Any) -> CommandEntry:
    return CommandEntry(summary, f"mew_agent.{implementation}", **settings)


def _rare(summary: str, implementation: str, **settings: Any) -> CommandEntry:
    """A command that only `mew help all` lists."""
    return _command(summary, implementation, is_everyday=False, **settings)


_CORE: Final[Sections] = {
    "Start and stop": {
        "init": _command("Create a space in this folder from a template.", "cli.space.init:init"),
        "up": _command("Start a space: its gateway and its participants.", "cli.space.up:up", detaches=True),
        "down": _command("Stop the running space of this folder.", "cli.space.running:down"),
        "restart": _command("Restart the running space, or one participant.", "cli.space.restart:restart"),
        "gateway": GroupEntry(
            "Run a gateway.",
            {"start": _command("Run the gateway of one or more spaces.", "cli.programs.gateway:start")},
            is_everyday=False,
        ),
    },
    "Watch": {
        "status": _command(
            "Show what needs you, and how full each agent's context window is.", "cli.remote.status:show_status"
        ),
        "logs": _command("Print what the programs of a space wrote.", "cli.space.running:logs"),
        "history": _command(
            "Print recent chats of a space, or envelopes of other kinds.", "cli.remote.history:show_history"
        ),
        "dashboard": _command("Print the address of the dashboard.", "cli.space.running:dashboard"),
    },
    "Talk and decide": {
        "chat": _command("Send a message and print the answer.", "cli.remote.control:chat"),
        "cancel": _command("Cancel what agents work on for you.", "cli.remote.cancelling:cancel"),
        "proposals": _command("List the proposals that need a decision.", "cli.remote.proposals:show_proposals"),
        "approve": _command("Approve a proposal: make its request.", "cli.remote.proposals:approve"),
        "reject": _command("Reject a proposal.", "cli.remote.proposals:reject"),
    },
    "Context windows": {
        "compact": _command(
            "Compact a participant's context and report the tokens freed.", "cli.remote.control:compact"
        ),
        "forget": _rare("Drop messages from one end of a participant's history.", "cli.remote.control:forget"),
        "clear": _rare("Clear a participant's history.", "cli.remote.control:clear"),
        "reset": _rare("Clear a participant's history and close its streams.", "cli.remote.control:reset"),
    },
    "Participants": {
        "agent": GroupEntry(
            "Add or remove a participant, or run an agent.",
            {
                "add": _command("Add a participant, even while the space runs.", "cli.space.add:add"),
                "remove": _command("Remove a participant from the space.", "cli.space.remove:remove"),
                "run": _command("Run an agent until it is shut down.", "cli.programs.agent:run"),
            },
        ),
        "pause": _command("Pause a participant.", "cli.remote.control:pause"),
        "resume": _command("Resume a paused participant.", "cli.remote.control:resume"),
        "shutdown": _command("Shut a participant down.", "cli.remote.control:shutdown"),
        "run": _rare("Run your own program as a participant.", "cli.programs.run:run_program", passes_options=True),
    },
    "Help": {"help": _rare("Show the help of a command.", "cli.app.help_pages:show_help")},
    "Other names": {
        "space up": OtherName("up"),
        "space down": OtherName("down"),
        "space status": OtherName("status"),
        "gateway drain": OtherName("down --drain"),
        # What users of docker, gh and others type.
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
    """Return all commands by section. Of two with the same name, the first counts.

    A group gets the commands of all, and the first summary and default that is given.
    """
    merged: dict[str, dict[str, Entry]] = {}
    for sections in all_sections:
        for title, entries in sections.items():
            section = merged.setdefault(title, {})
            for name, entry in entries.items():
                known = section.get(name)
                if isinstance(known, GroupEntry) and isinstance(entry, GroupEntry):
                    section[name] = replace(
                        known,
                        summary=known.summary or entry.summary,
                        default=known.default or entry.default,
                        commands={**entry.commands, **known.commands},
                    )
                elif known is None:
                    section[name] = entry
    return merged


COMMANDS: Final = _merged([_CORE, *load_table("mew_agent.commands").values()])
