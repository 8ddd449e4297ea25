"""[pure] Slash commands that stand for one envelope each, whatever was said before.

Owns their grammar and their help. What refers to the conversation (proposals, acknowledgements) is `talk`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mew_protocol import kinds

HELP: Final = """\
text                                  say it, to /target or everybody
/target [PARTICIPANT ...|none]        whom text goes to; alone: show it
/who                                  who is here, and how full they are
/status P [FIELD ...]                 ask for a status
/compact P [TOKENS] [REASON]          let somebody compact
/forget P [oldest|newest] [N]         let somebody drop history
/clear, /pause P [SECONDS], /resume, /restart, /shutdown P [REASON]
/approve [N], /reject [N] [REASON]    answer a proposal; the number may be left out if one is open
/call P TOOL [JSON]                   call a tool of somebody
/ack [all|P|ID] [STATUS]              acknowledge chats; alone: the newest
/cancel [REASON]                      cancel the reasoning that runs, else the last chat you sent
/stream request P DIRECTION [WORDS]   ask for a stream; /stream close ID [REASON]
/verbose                              show everything, or stop that
/exit                                 leave
{"kind": ...}                         sent as an envelope"""

_PLAIN_CONTROLS: Final[Mapping[str, str]] = {
    "/clear": kinds.PARTICIPANT_CLEAR,
    "/resume": kinds.PARTICIPANT_RESUME,
    "/shutdown": kinds.PARTICIPANT_SHUTDOWN,
}


@dataclass(frozen=True, slots=True)
class Send:
    """An envelope to send."""

    kind: str
    payload: Mapping[str, Any]
    to: tuple[str, ...] = ()
    correlation_id: tuple[str, ...] = ()
    context: str | None = None


class Mistake(ValueError):
    """A line that means nothing; the message says why."""


def control(command: str, parts: list[str]) -> Send:
    """The commands that act on a participant: its name first, then what belongs to the command. Raises `Mistake`."""
    known = (*_PLAIN_CONTROLS, "/status", "/pause", "/forget", "/compact", "/restart")
    if command not in known:
        raise Mistake(f"there is no command {command}; see /help")
    if not parts:
        raise Mistake(f"{command} whom? (see /help)")
    to, rest = (parts[0],), parts[1:]
    payload: dict[str, Any] = {}
    match command:
        case "/status":
            return Send(kinds.PARTICIPANT_REQUEST_STATUS, {"fields": rest} if rest else {}, to)
        case "/pause":
            if rest and _number(rest[0]) is not None:
                payload["timeout_seconds"] = _number(rest.pop(0))
            kind = kinds.PARTICIPANT_PAUSE
        case "/forget":
            payload["direction"] = rest.pop(0) if rest and rest[0] in ("oldest", "newest") else "oldest"
            if rest and (not rest[0].isdecimal() or int(rest[0]) == 0):
                raise Mistake(f"'{rest[0]}' is no number of entries")
            return Send(kinds.PARTICIPANT_FORGET, {**payload, **({"entries": int(rest[0])} if rest else {})}, to)
        case "/compact":
            if rest and rest[0].isdecimal():
                payload["target_tokens"] = int(rest.pop(0))
            kind = kinds.PARTICIPANT_COMPACT
        case "/restart":
            if rest:
                payload["mode"] = rest.pop(0)
            kind = kinds.PARTICIPANT_RESTART
        case _:
            kind = _PLAIN_CONTROLS[command]
    return Send(kind, {**payload, **({"reason": " ".join(rest)} if rest else {})}, to)


def call(rest: str) -> Send:
    """`PARTICIPANT TOOL [JSON]`. Raises `Mistake`."""
    participant, _, more = rest.strip().partition(" ")
    tool, _, arguments = more.strip().partition(" ")
    if not tool:
        raise Mistake("/call PARTICIPANT TOOL [JSON]")
    try:
        values = json.loads(arguments) if arguments.strip() else {}
    except ValueError as error:
        raise Mistake(f"the arguments are no JSON: {error}") from None
    if not isinstance(values, dict):
        raise Mistake('the arguments are a JSON object, such as {"path": "README.md"}')
    params = {"name": tool, "arguments": values}
    return Send(
        kinds.MCP_REQUEST, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, (participant,)
    )


def stream(parts: list[str]) -> Send:
    """`request PARTICIPANT DIRECTION ...` or `close ID ...`. Raises `Mistake`."""
    match parts:
        case ["request", participant, direction, *rest]:
            payload: dict[str, Any] = {"direction": direction}
            sizes = [part.partition("=")[2] for part in rest if part.startswith(("size=", "bytes="))]
            if sizes and sizes[-1].isdecimal():
                payload["expected_size_bytes"] = int(sizes[-1])
            description = " ".join(part for part in rest if not part.startswith(("size=", "bytes=")))
            return Send(
                kinds.STREAM_REQUEST,
                {**payload, **({"description": description} if description else {})},
                (participant,),
            )
        case ["close", stream, *rest]:
            payload = {"stream_id": stream, **({"reason": " ".join(rest)} if rest else {})}
            return Send(kinds.STREAM_CLOSE, payload, correlation_id=(stream,))
        case _:
            raise Mistake("/stream request PARTICIPANT DIRECTION [WORDS] or /stream close ID [REASON]")


def as_written(value: Mapping[str, Any]) -> Send:
    """An envelope somebody typed; ids and times are ours."""
    payload, context = value.get("payload"), value.get("context")
    return Send(
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


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 else None
