"""`mew history`: selects envelopes of a space and prints them.

The gateway decides how long it keeps envelopes.
"""

import json
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final

from mew_board import words
from mew_board.quoting import clean, indented, markdown_block, markdown_line
from mew_protocol import kinds

from mew_agent.cli.app import terminal
from mew_agent.cli.app.capabilities import warn_of_unknown_kinds
from mew_agent.cli.app.options import OUTPUT, ConnectionOptions, option, participant_argument
from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.cli.remote.identity import find_gateway
from mew_agent.cli.remote.sent_request import check_known
from mew_agent.errors import ConfigError
from mew_agent.gateway_http import NewestMessages

Message = dict[str, Any]
"""An envelope as JSON."""

_MAX_CHARS: Final = 4_000
"""Of one chat, so that a pasted file does not push all others off the screen."""


def show_history(
    target: Annotated[str | None, participant_argument("Show only messages from or to this participant.")] = None,
    *,
    last: Annotated[int, option("--last, -n N", "Number of newest envelopes to print.", min=1)] = 20,
    kind: Annotated[
        list[str] | None, option("--kind KIND", "Show this kind, such as 'mcp/*'; repeatable (default: chat).")
    ] = None,
    everything: Annotated[bool, option("--all", "Show every kind.")] = False,
    as_markdown: Annotated[bool, option("--markdown", "Print a Markdown document.")] = False,
    connection: ConnectionOptions,
) -> None:
    """Print recent chats of a space, or envelopes of other kinds.

    Reads what the gateway still keeps, oldest first.
    """
    if OUTPUT.is_json and as_markdown:
        raise ConfigError("--markdown", "cannot be combined with --json")
    patterns = ["*"] if everything else kind or [kinds.CHAT]
    api = find_gateway(connection)
    newest = _read(api, NewestMessages(api.space, api.participant, patterns, target, last))
    if OUTPUT.is_json:
        terminal.print_json(newest)
    else:
        _print_messages(newest, as_markdown=as_markdown)
    if newest:
        return
    if target is not None:
        check_known(api, api.board(), target)
    if not OUTPUT.is_json:
        terminal.print_line("the gateway keeps no matching envelopes")
        warn_of_unknown_kinds({"kind": pattern} for pattern in patterns)


def _markdown(message: Message) -> str:
    """Return one envelope as a section: the text of a chat, others as JSON. No text can close its code block."""
    who, payload, kind = _who(message), message.get("payload") or {}, message.get("kind")
    at = message.get("ts")
    if kind == kinds.CHAT:
        block = markdown_block(str(payload.get("text")), "markdown")
        return f"## {markdown_line(f'{who}, {at}')}\n\n{block}\n"
    block = markdown_block(json.dumps(payload, ensure_ascii=False, indent=2), "json")
    return f"## {markdown_line(f'{who}, {kind}, {at}')}\n\n{block}\n"


def _read(api: GatewayApi, newest: NewestMessages) -> list[Message]:
    read = 0
    with terminal.ProgressLine() as progress:
        for page in api.pages(newest):
            read += len(page["messages"])
            progress.show(f"{api.space}: read {words.count_of(read, 'envelope')}")
    return newest.found


def _print_messages(messages: Iterable[Message], *, as_markdown: bool) -> None:
    for message in messages:
        terminal.print_line(_markdown(message) if as_markdown else _message_line(message, terminal.now()))


def _message_line(message: Message, now: datetime) -> str:
    """Return one envelope as text: a chat up to a limit, the rest as one line."""
    at = words.clock(str(message.get("ts")), now, today="%H:%M:%S")
    who, payload = _who(message), message.get("payload") or {}
    if message.get("kind") == kinds.CHAT:
        # Indented, so that no line of a text looks like another sender's envelope.
        text = str(payload.get("text"))
        if (rest := len(text) - _MAX_CHARS) > 0:
            text = f"{text[:_MAX_CHARS]}\n... {rest:,} more characters; --markdown prints all"
        return f"{at}  {clean(who)}: {indented(text, ' ' * (len(at) + 2))}"
    line = f"{at}  {who}  {message.get('kind')} {json.dumps(payload, ensure_ascii=False)}"
    return words.clip(clean(line), terminal.style_of(sys.stdout).width)


def _who(message: Message) -> str:
    return " to ".join(filter(None, (str(message.get("from")), ", ".join(message.get("to") or ()))))
