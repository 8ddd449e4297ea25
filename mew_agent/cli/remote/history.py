"""`mew history`: recent envelopes of a space, from the gateway's history.

Owns which envelopes are shown, and how. The gateway decides how long it keeps them.
"""

import json
import re
import sys
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any

from mew_protocol import kinds

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import ConnectionOptions, option, participant_argument, with_option_groups
from mew_agent.cli.board import words
from mew_agent.cli.remote.session import ApiSession, open_session
from mew_agent.errors import ConfigError

Message = dict[str, Any]
"""An envelope as JSON."""


_HEADING = re.compile(r"^( {0,3})(?=## )", re.MULTILINE)
"""In the text of a chat, it could pass for the heading of an envelope of another sender."""


@with_option_groups
def show_history(
    target: Annotated[str | None, participant_argument("Show only what it sent, or what is addressed to it.")] = None,
    *,
    last: Annotated[int, option("--last, -n N", "Number of newest envelopes to print.", min=1)] = 20,
    kind: Annotated[
        list[str] | None, option("--kind KIND", "Show this kind, such as 'mcp/*'; repeatable (default: chat).")
    ] = None,
    everything: Annotated[bool, option("--all", "Show every kind.")] = False,
    as_json: Annotated[bool, option("--json", "Print JSON Lines, one envelope per line.")] = False,
    as_markdown: Annotated[bool, option("--markdown", "Print a Markdown document.")] = False,
    connection: ConnectionOptions,
) -> int:
    """Print recent chats of a space, or envelopes of other kinds.

    Reads what the gateway still keeps, oldest first.
    """
    if as_json and as_markdown:
        raise ConfigError("--markdown", "excludes --json")
    patterns = ["*"] if everything else kind or [kinds.CHAT]
    newest: deque[Message] = deque(maxlen=last)
    for message in _all_messages(open_session(connection)):
        is_wanted = any(fnmatchcase(str(message.get("kind")), pattern) for pattern in patterns)
        if is_wanted and (target is None or target in (message.get("from"), *(message.get("to") or ()))):
            newest.append(message)
    for message in newest:
        if as_json:
            terminal.print_json(message)
        elif as_markdown:
            terminal.print_line(_markdown(message))
        else:
            terminal.print_line(_line(message, datetime.now(UTC).astimezone()))
    if not newest and not as_json:
        terminal.print_line("the gateway keeps no such envelope")
    return ExitCode.DONE


def _all_messages(session: ApiSession) -> Iterator[Message]:
    """Every envelope that the gateway still keeps, oldest first."""
    since: str | None = None
    while True:
        page = session.api.messages(since)
        yield from page["messages"]
        since = str(page["next"])
        if not page.get("more"):
            return


def _markdown(message: Message) -> str:
    """One envelope as a section: a chat as it was written, others as JSON."""
    to, payload = ", ".join(message.get("to") or ()), message.get("payload") or {}
    who = f"{message.get('from')} to {to}" if to else str(message.get("from"))
    if message.get("kind") == kinds.CHAT:
        heading, text = words.clean(f"{who}, {message.get('ts')}"), str(payload.get("text"))
        return "## {}\n\n{}\n".format(heading, _HEADING.sub(r"\1\\", text))
    shown = json.dumps(payload, ensure_ascii=False, indent=2)
    heading = words.clean(f"{who}, {message.get('kind')}, {message.get('ts')}")
    return f"## {heading}\n\n~~~~json\n{shown}\n~~~~\n"


def _line(message: Message, now: datetime) -> str:
    """One envelope as text. Only chats are shown in full."""
    at = words.parse_time(str(message.get("ts")))
    at = at.astimezone(now.tzinfo) if at is not None else None
    time = "?" if at is None else f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"
    to = ", ".join(message.get("to") or ())
    who = f"{message.get('from')} to {to}" if to else str(message.get("from"))
    payload = message.get("payload") or {}
    if message.get("kind") == kinds.CHAT:
        # Indented: no line of a text may look like an envelope of another sender.
        text = "\n".join(str(payload.get("text")).splitlines()).replace("\n", "\n" + " " * (len(time) + 2))
        return f"{time}  {words.clean(who)}: {text}"
    line = f"{time}  {who}  {message.get('kind')} {json.dumps(payload, ensure_ascii=False)}"
    return words.clip(words.clean(line), terminal.style_of(sys.stdout).width)
