"""The same verbs on every surface: the command line, the terminal application and Python."""

import pytest

from mew_agent.cli.chat.slash import COMMANDS
from mew_agent.cli.main import command_line
from mew_agent.participant.participant import Participant

VERBS = {
    "cancel": ("cancel", None),
    "chat": (None, "chat"),
    "clear": ("clear", None),
    "compact": ("compact", "compact"),
    "forget": ("forget", None),
    "grant": ("grant", None),
    "pause": ("pause", None),
    "pin": ("pin", "pin"),
    "recall": ("recall", "recall"),
    "reset": ("reset", None),
    "resume": ("resume", None),
    "revoke": ("revoke", "revoke"),
    "shutdown": ("shutdown", None),
    "undo": ("undo", "undo"),
    "unpin": ("unpin", "unpin"),
    "approve": ("approve", None),
    "reject": ("reject", None),
    "status": ("status", None),
    "agent remove": ("remove", None),
}
"""Each command, with its slash command and its method. None: text does it, or Python has no method yet."""


@pytest.mark.parametrize("command", VERBS)
def test_verb_has_one_name_everywhere(command: str) -> None:
    slash, method = VERBS[command]
    found = command_line()
    for word in command.split():
        found = found.get_command(None, word)
    assert found is not None
    assert slash is None or f"/{slash}" in COMMANDS
    assert method is None or callable(getattr(Participant, method))
