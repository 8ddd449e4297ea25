"""The same verbs on every surface: the command line, the terminal application, the page and Python."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from mew_board.verbs import VERBS as VERBS_OF_ALL
from mew_protocol import kinds
from mew_protocol.envelope import Draft
from mew_protocol.payloads.participant import is_preliminary
from mew_settings.roles import ROLE_PATTERNS

from mew_agent.cli.main import command_line
from mew_agent.participant.participant import Participant
from mew_agent.parts.terminal.slash import COMMANDS
from tests.house.conftest import ROOT

PAGE = (ROOT / "spaces/mew_spaces/dashboard/commands.js").read_text(encoding="utf-8")
OF_THE_PAGE = frozenset(re.findall(r"^  (\w+): \{", PAGE, re.MULTILINE))
PAGE_COMMANDS = OF_THE_PAGE | {name for name, verb in VERBS_OF_ALL.items() if "words" in verb}


@dataclass(frozen=True)
class Names:
    """The names of a verb; None where something else does it, which `why` names."""

    command: str | None
    slash: str | None
    page: str | None
    method: str | None
    why: str = ""


def same(verb: str) -> Names:
    """A verb with one name everywhere."""
    return Names(verb, verb, verb, verb)


VERBS = [
    *map(same, ("approve", "cancel", "clear", "compact", "forget", "grant", "invite", "pause", "pin", "recall")),
    *map(same, ("reject", "reset", "resume", "revoke", "shutdown", "undo", "unpin")),
    Names("chat", None, None, "chat", why="a line without a slash is a chat"),
    Names("agent remove", "remove", "remove", "kick", why="the command also edits space.yaml"),
    Names("status", "status", "status", "request_status", why="in Python `peers` holds the last status"),
    Names("history", None, None, "history", why="the conversation scrolls back"),
    Names("proposals", None, None, "proposals", why="`Needs you` lists them"),
    Names("fit", None, None, "would_fit", why="the agent answers whether a sent chat fits"),
    Names("receipt", None, None, "receipts", why="a chat shows its receipt"),
    Names(None, "urgent", "urgent", None, why="an option of chat: `mew chat --urgent`, `me.chat(..., urgent=True)`"),
    Names(None, "call", "call", "call_tool", why="a call of a tool needs a participant that stays for its answer"),
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: str(verb.command or verb.slash))
def test_verb_has_one_name_everywhere(verb: Names) -> None:
    found = command_line()
    for word in (verb.command or "").split():
        found = found.get_command(None, word)
    assert found is not None
    assert verb.slash is None or f"/{verb.slash}" in COMMANDS
    assert verb.page is None or verb.page in PAGE_COMMANDS
    assert verb.method is None or hasattr(Participant, verb.method)
    assert verb.why or None not in (verb.command, verb.slash, verb.page, verb.method)


def test_the_page_names_roles_that_exist() -> None:
    text = (ROOT / "spaces/mew_spaces/dashboard/actions.js").read_text(encoding="utf-8")
    labels = re.search(r"export const ROLES = \{(.*)\};", text)
    assert labels is not None
    assert {*re.findall(r"(\w+):", labels[1])} == {*ROLE_PATTERNS} - {"observer"}


def test_table_holds_every_verb_of_the_page() -> None:
    assert {verb.page for verb in VERBS if verb.page} == PAGE_COMMANDS


def test_table_holds_every_slash_command_about_a_participant() -> None:
    of_the_conversation = {"/ack", "/exit", "/help", "/stream", "/target", "/verbose", "/who"}
    assert {f"/{verb.slash}" for verb in VERBS if verb.slash} == {*COMMANDS} - of_the_conversation


@pytest.mark.parametrize("verb", VERBS_OF_ALL.values(), ids=VERBS_OF_ALL)
def test_the_page_waits_for_the_end_of_what_begins(verb: dict[str, Any]) -> None:
    begun = Draft(kind=kinds.PARTICIPANT_STATUS, payload={"status": "compacting"})
    assert is_preliminary(begun, verb["kind"]) == verb.get("begins", False)
