"""Every command of `mew`: its name, its one-line summary, and the function that implements it.

Parts and other packages add theirs by entry points of the group `mew_agent.commands`, each a `Sections`. Nothing here
imports a command, so `mew --help` answers at once. A summary is also the first line of the command's own help; a test
compares the two.
"""

from collections.abc import Iterable
from typing import Final

from mew_settings.plugins import load_table

from mew_agent.cli.app.groups import CommandEntry, GroupEntry, Sections


def _command(summary: str, implementation: str, *, passes_options: bool = False) -> CommandEntry:
    return CommandEntry(summary, f"mew_agent.{implementation}", passes_options)


# Listed twice: at the top level for people, and below `space` for scripts of the reference CLI.
_UP: Final = _command("Start a space: its gateway and its participants.", "cli.space.up:up")
_DOWN: Final = _command("Stop the running space of this folder.", "cli.space.running:down")
_STATUS: Final = _command(
    "Show what needs you, and how full each agent's context window is.", "cli.remote.status:show_status"
)

_CORE: Final[Sections] = {
    "Start and stop": {
        "init": _command("Create a space in this folder from a template.", "cli.space.init:init"),
        "up": _UP,
        "down": _DOWN,
        "restart": _command("Restart the running space, or one participant.", "cli.space.restart:restart"),
        "doctor": _command("List what is installed, and how to install the rest.", "cli.space.doctor:doctor"),
        "demo": _command("Watch two agents fill up and compact; needs no key.", "cli.demo.demo:demo"),
    },
    "Watch": {
        "status": _STATUS,
        "dashboard": _command("Print the address of the dashboard.", "cli.space.running:dashboard"),
        "logs": _command("Print what the programs of a space wrote.", "cli.space.running:logs"),
        "proposals": _command("List the proposals that need a decision.", "cli.remote.permissions:show_proposals"),
        "history": _command(
            "Print recent chats of a space, or envelopes of other kinds.", "cli.remote.reading:show_history"
        ),
        "fit": _command("Check whether a text fits into an agent's context.", "cli.remote.reading:fit"),
        "tools": _command("List the tools that participants offer.", "cli.remote.reading:show_tools"),
    },
    "Act on a participant": {
        "chat": _command("Send a message and print the answer.", "cli.remote.control:chat"),
        "approve": _command("Approve a proposal: make its request.", "cli.remote.permissions:approve"),
        "reject": _command("Reject a proposal.", "cli.remote.permissions:reject"),
        "grant": _command("Grant capabilities to a participant.", "cli.remote.permissions:grant"),
        "revoke": _command("Revoke capabilities granted to a participant.", "cli.remote.permissions:revoke"),
        "compact": _command(
            "Compact a participant's context and report the tokens freed.", "cli.remote.control:compact"
        ),
        "forget": _command("Drop messages from one end of a participant's history.", "cli.remote.control:forget"),
        "clear": _command("Clear a participant's history.", "cli.remote.control:clear"),
        "pin": _command("Keep a text in every prompt of an agent, or list its pins.", "cli.remote.control:pin"),
        "unpin": _command("Remove a pinned text from an agent.", "cli.remote.control:unpin"),
        "context": GroupEntry(
            "List, show, undo and search compactions; try out policies.",
            {
                "history": _command("List a participant's compactions.", "cli.remote.archive:history"),
                "show": _command(
                    "Print what fills a context, or what a compaction replaced.", "cli.remote.archive:show"
                ),
                "undo": _command("Undo a compaction and restore what it removed.", "cli.remote.archive:undo"),
                "recall": _command("Search what left a participant's context.", "cli.remote.archive:recall"),
                "simulate": _command(
                    "Replay a log of context sizes through a policy.", "parts.policies.command:simulate"
                ),
            },
        ),
        "pause": _command("Pause a participant.", "cli.remote.control:pause"),
        "resume": _command("Resume a paused participant.", "cli.remote.control:resume"),
        "shutdown": _command("Shut a participant down.", "cli.remote.control:shutdown"),
    },
    "Join a space, or add to it": {
        "space": GroupEntry(
            "Join a space from the terminal; start, stop or clean one.",
            {
                "connect": _command("Join the running space from this terminal.", "cli.chat.connect:connect"),
                "up": _UP,
                "down": _DOWN,
                "status": _STATUS,
                "clean": _command("Remove the logs and FIFOs of past runs.", "cli.space.clean:clean"),
            },
        ),
        "agent": GroupEntry(
            "Run an agent, or add a participant.",
            {
                "run": _command("Run an agent until it is shut down.", "cli.programs.agent:run"),
                "add": _command("Add a participant, even while the space runs.", "cli.space.add:add"),
            },
        ),
        "run": _command("Run your own program as a participant.", "cli.programs.run:run_program", passes_options=True),
        "token": GroupEntry(
            "Create, list, rotate and revoke tokens.",
            {
                "create": _command(
                    "Print a participant's or observer's token; create it if needed.", "cli.space.tokens:create"
                ),
                "list": _command(
                    "List the token files of a space, without the tokens.", "cli.space.tokens:list_tokens"
                ),
                "rotate": _command("Replace a token with a new one and print it.", "cli.space.tokens:rotate"),
                "revoke": _command("Delete a token.", "cli.space.tokens:revoke"),
            },
        ),
        "sessions": GroupEntry(
            "List, show, export and prune stored conversations.",
            {
                "list": _command("List the stored conversations of this space.", "cli.space.sessions:list_sessions"),
                "show": _command("Print the newest items of a conversation.", "cli.space.sessions:show"),
                "export": _command(
                    "Export a whole conversation as JSON Lines, JSON or Markdown.", "cli.space.sessions:export"
                ),
                "prune": _command("Remove old parts of stored conversations.", "cli.space.sessions:prune"),
            },
        ),
    },
    "Run one component": {
        "gateway": GroupEntry(
            "Run or drain a gateway.",
            {
                "start": _command("Run the gateway of one or more spaces.", "cli.programs.gateway:start"),
                "drain": _command(
                    "Stop a gateway after its members have moved to others.", "cli.programs.gateway:drain"
                ),
            },
        ),
        "model": GroupEntry(
            "Run a model server.",
            {"serve": _command("Run the rehearsal model (canned replies), or a real one.", "cli.programs.model:serve")},
        ),
        "client": GroupEntry(
            "Connect by hand or from a script.",
            {"connect": _command("Join a space and exchange lines of JSON.", "cli.chat.client:connect")},
        ),
    },
}


def _merged(all_sections: Iterable[Sections]) -> Sections:
    """Return all commands by section. A group gets the commands of all; of two with the same name, the first counts."""
    merged: dict[str, dict[str, CommandEntry | GroupEntry]] = {}
    for sections in all_sections:
        for title, entries in sections.items():
            section = merged.setdefault(title, {})
            for name, entry in entries.items():
                known = section.get(name)
                if isinstance(known, GroupEntry) and isinstance(entry, GroupEntry):
                    section[name] = GroupEntry(known.summary, {**entry.commands, **known.commands})
                elif known is None:
                    section[name] = entry
    return merged


COMMANDS: Final = _merged([_CORE, *load_table("mew_agent.commands").values()])
