"""`mew tools`, `fit` and `receipt`: ask participants for their tools, their free room and what they have read."""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, Sections

COMMANDS: Final[Sections] = {
    "Watch": {
        "tools": CommandEntry(
            "List the tools that participants offer.", "mew_agent.parts.questions.tools:tools", is_everyday=False
        )
    },
    "Talk and decide": {
        "receipt": CommandEntry(
            "Show who has read a message, and what is left of it in their contexts.",
            "mew_agent.parts.questions.receipt:receipt",
            is_everyday=False,
        )
    },
    "Context windows": {
        "fit": CommandEntry(
            "Check whether a text fits into an agent's context.", "mew_agent.parts.questions.fit:fit", is_everyday=False
        )
    },
}
