"""`mew tools`, `fit` and `receipt`: ask participants for their tools, free room and read receipts."""

from typing import Final

from mew_agent.cli.app.groups import Sections, rare_command

COMMANDS: Final[Sections] = {
    "Watch": {
        "tools": rare_command("List the tools that participants offer.", "mew_agent.parts.questions.list_tools:tools")
    },
    "Talk and decide": {
        "receipt": rare_command(
            "Show the read receipts of a message.",
            "mew_agent.parts.questions.receipt:receipt",
        )
    },
    "Context windows": {
        "fit": rare_command(
            "Check whether a text fits into an agent's context.", "mew_agent.parts.questions.ask_fit:fit"
        )
    },
}
