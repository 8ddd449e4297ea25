"""`mew undo`, `recall`, `context history` and `context show`: texts that compactions removed from a context."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, GroupEntry, OtherName, Sections

COMMANDS: Final[Sections] = {
    "Context windows": {
        "undo": CommandEntry(
            "Undo a compaction and restore the removed messages.", "mew_agent.parts.archive.undo_and_recall:undo"
        ),
        "recall": CommandEntry(
            "Search removed messages of a participant's context.", "mew_agent.parts.archive.undo_and_recall:recall"
        ),
        "context": GroupEntry("List compactions, show the parts of a context, try out policies."),
        "context history": CommandEntry(
            "List a participant's compactions.", "mew_agent.parts.archive.undo_and_recall:history"
        ),
        "context show": CommandEntry(
            "Print the parts of a context, or the text before a compaction.",
            "mew_agent.parts.archive.undo_and_recall:show",
        ),
    },
    "Other names": {
        "inspect": OtherName("context show"),
    },
}
