"""`mew chat`: say something to a participant and print what it answers."""

import sys

from mew_protocol import kinds
from mew_protocol.payloads.chat import Chat

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import Flags
from mew_agent.cli.remote.question import asking
from mew_agent.errors import ConfigError


def say_to(flags: Flags, participant: str, text: str, *, timeout_seconds: float) -> int:
    """Say a text (`-`: standard input) and print the answer. Returns the exit code."""
    if text == "-":
        text = sys.stdin.read()
    if not text.strip():
        raise ConfigError("TEXT", "there is nothing to say", "some text, or `-` and text on standard input")
    with asking(flags, participant, kinds.CHAT, Chat(text=text), timeout_seconds) as question:
        if question.is_paused:
            terminal.warn(f"'{participant}' is paused and answers later; {question.remedy}")
        for _, body in question.answers(kinds.CHAT, loosely=True):
            terminal.say(str(body.get("text") or ""))
            return terminal.DONE
    raise AssertionError("answers end with an error or a return")
