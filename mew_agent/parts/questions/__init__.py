"""`mew tools`, `fit` and `receipt`: ask participants for their tools, their free room and what they have read."""

from typing import Final

from mew_agent.cli.app.groups import Sections, rare_command

COMMANDS: Final[Sections] = {
    "Watch": {
        "tools": rare_command("List the tools that participants offer.", "mew_agent.parts.questions.tools:tools")
    },
    "Talk and decide": {
        "receipt": rare_command(
            "Show who has read a message, and what is left of it in their contexts.",
            "mew_agent.parts.questions.receipt:receipt",
        )
    },
    "Context windows": {
        "fit": rare_command("Check whether a text fits into an agent's context.", "mew_agent.parts.questions.fit:fit")
    },
}
