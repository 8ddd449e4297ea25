"""`mew undo`, `recall`, `context history` and `context show`: what compactions removed from a context."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, GroupEntry, OtherName, Sections

COMMANDS: Final[Sections] = {
    "Context windows": {
        "undo": CommandEntry("Undo a compaction and restore what it removed.", "mew_agent.parts.archive.command:undo"),
        "recall": CommandEntry("Search what left a participant's context.", "mew_agent.parts.archive.command:recall"),
        "context": GroupEntry(
            "List compactions, show what fills a context, try out policies.",
            {
                "history": CommandEntry("List a participant's compactions.", "mew_agent.parts.archive.command:history"),
                "show": CommandEntry(
                    "Print what fills a context, or what a compaction replaced.", "mew_agent.parts.archive.command:show"
                ),
            },
        ),
    },
    "Other names": {
        "inspect": OtherName("context show"),
    },
}
