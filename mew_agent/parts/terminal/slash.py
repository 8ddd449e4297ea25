"""[pure] Slash commands that send one envelope, independent of the conversation.

Owns their grammar and help. `terminal_chat` has the commands about the conversation (proposals, acknowledgements).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mew_board.verbs import VERBS, payload_of
from mew_protocol import kinds
from mew_settings.roles import ROLE_PATTERNS, invitation

HELP: Final = """\
TEXT                                send to its @names, /target, or everyone
/urgent TEXT                        send it into a running turn
/target [PARTICIPANT ...|none]      set who gets your text; alone: show it
/who                                list the participants and their contexts
/status P [FIELD ...]               ask for a status
/compact P [TOKENS] [REASON]        compact a participant's context
/forget P [oldest|newest] [N]       drop messages from a history
/pin P TEXT, /unpin P ID|TEXT       keep or remove a text in every prompt
/undo P [N], /recall P WORDS        undo a compaction, or search what left
/clear, /reset P [REASON]           clear a history; /reset closes streams too
/pause P [SECONDS], /resume, /shutdown P [REASON]
/grant, /revoke P KIND ...          grant capabilities, or revoke them
/invite P [ROLE|KIND ...]           add a person, an agent or a tool
/remove P [REASON]                  end a membership
/approve [N], /reject [N] [REASON]  answer a proposal; N if several are open
/call P TOOL [JSON]                 call a participant's tool
/ack [all|P|ID] [STATUS]            acknowledge chats; alone: the newest
/cancel [P] [REASON]                cancel work for you, or all that P works on
/stream request P DIRECTION [WORDS] request a stream
/stream close ID [REASON]           close a stream
/verbose                            show or hide unimportant envelopes
/exit                               leave
{"kind": ...}                       send as an envelope"""


COMMANDS: Final = tuple(sorted({"/help", *re.findall(r"(?:^|[,;] )(/[a-z]+)", HELP, re.MULTILINE)}))
"""Every slash command, from the help."""


def completions(line: str, names: Sequence[str]) -> list[str]:
    """Return the possible completions of a line's last word: a command, a `@name`, or the name after a command."""
    before, space, word = line.rpartition(" ")
    if not space:
        candidates = [*COMMANDS, *(f"@{name}" for name in names)]
    elif before.startswith("/") and " " not in before:
        candidates = list(names)
    else:
        candidates = [f"@{name}" for name in names]
    return [f"{before}{space}{one}" for one in candidates if word and one.startswith(word) and one != word]


def mentioned(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the participants named as `@name` in a text, in the order of `names`."""
    words = {word.rstrip(".,:;!?") for word in text.split() if word.startswith("@")}
    return tuple(name for name in names if f"@{name}" in words)


@dataclass(frozen=True, slots=True)
class TypedEnvelope:
    """An envelope to send; id and time are added later."""

    kind: str
    payload: Mapping[str, Any]
    to: tuple[str, ...] = ()
    correlation_id: tuple[str, ...] = ()
    context: str | None = None


class InvalidLine(ValueError):
    """An invalid line; the message has the reason."""


def control(command: str, parts: list[str]) -> TypedEnvelope:
    """Parse a command about a participant: its name, then the command's own words. Raises `InvalidLine`."""
    name = command.removeprefix("/")
    verb = VERBS.get(name)
    if verb is None or "words" not in verb or name == "cancel":
        raise InvalidLine(f"unknown command {command}; see /help")
    if not parts:
        raise InvalidLine(f"{command} needs a participant; see /help")
    participant, *rest = parts
    participant = participant.removeprefix("@")
    try:
        payload = _PAYLOADS[name](rest) if name in _PAYLOADS else payload_of(verb, rest)
    except InvalidLine:
        raise
    except ValueError as error:
        raise InvalidLine(f"{error}; see /help") from None
    if "target" in verb:
        return TypedEnvelope(verb["kind"], {**payload, verb["target"]: participant})
    return TypedEnvelope(verb["kind"], payload, (participant,))


def _capabilities(words: list[str]) -> dict[str, Any]:
    if not words:
        raise InvalidLine("a kind such as mcp/proposal is missing; see /help")
    return {"capabilities": [{"kind": word} for word in words]}


def _right(word: str) -> str:
    """Return a role or a kind; kinds have a slash or a star, or are `chat`."""
    if word not in (*ROLE_PATTERNS, kinds.CHAT) and not {"/", "*"} & {*word}:
        raise InvalidLine(f"'{word}' is not one of {', '.join(ROLE_PATTERNS)}, or a kind such as mcp/proposal")
    return word


_PAYLOADS: Final[Mapping[str, Callable[[list[str]], dict[str, Any]]]] = {
    "grant": _capabilities,
    "revoke": _capabilities,
    "invite": lambda words: invitation("", [_right(word) for word in words]),
}
"""How words become a payload where it has no fields."""

OTHER_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    f"/{verb['formerly']}": (f"/{name}", verb["does"]) for name, verb in VERBS.items() if "formerly" in verb
}
"""Other names of commands, and the effect of the command."""


def call(rest: str) -> TypedEnvelope:
    """`PARTICIPANT TOOL [JSON]`. Raises `InvalidLine`."""
    participant, _, more = rest.strip().partition(" ")
    tool, _, arguments = more.strip().partition(" ")
    if not tool:
        raise InvalidLine("/call PARTICIPANT TOOL [JSON]")
    try:
        values = json.loads(arguments) if arguments.strip() else {}
    except ValueError as error:
        raise InvalidLine(f"the arguments are not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidLine('the arguments must be a JSON object such as {"path": "README.md"}')
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": values}}
    return TypedEnvelope(kinds.MCP_REQUEST, request, (participant,))


def stream(parts: list[str]) -> TypedEnvelope:
    """`request PARTICIPANT DIRECTION ...` or `close ID ...`. Raises `InvalidLine`."""
    match parts:
        case ["request", participant, direction, *rest]:
            payload: dict[str, Any] = {"direction": direction}
            sizes = [part.partition("=")[2] for part in rest if part.startswith(("size=", "bytes="))]
            if sizes and sizes[-1].isdecimal():
                payload["expected_size_bytes"] = int(sizes[-1])
            if description := " ".join(part for part in rest if not part.startswith(("size=", "bytes="))):
                payload["description"] = description
            return TypedEnvelope(kinds.STREAM_REQUEST, payload, (participant,))
        case ["close", stream, *rest]:
            reason = {"reason": " ".join(rest)} if rest else {}
            return TypedEnvelope(kinds.STREAM_CLOSE, {"stream_id": stream, **reason}, correlation_id=(stream,))
        case _:
            raise InvalidLine("/stream request PARTICIPANT DIRECTION [WORDS] or /stream close ID [REASON]")


def as_typed(value: Mapping[str, Any]) -> TypedEnvelope:
    """Return an envelope typed as JSON."""
    payload, context = value.get("payload"), value.get("context")
    return TypedEnvelope(
        str(value["kind"]),
        payload if isinstance(payload, dict) else {},
        _ids(value.get("to")),
        _ids(value.get("correlation_id")),
        context if isinstance(context, str) else None,
    )


def _ids(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(one) for one in value) if isinstance(value, list) else ()
