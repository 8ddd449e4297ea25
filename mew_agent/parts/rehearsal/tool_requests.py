"""[pure] Find the tool calls that a message requests, with their arguments.

A request is `call NAME with {...}` (also `use`, `run`, `invoke`; several in one message are parallel calls), a name in
backticks, or a name that is no ordinary word (`read_file`), anywhere in the message.

Without a JSON object after the name, required arguments come from the message: quoted texts and numbers in order, else
the whole message. Does not know the conversation or the reply.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from mew_protocol.json_values import object_at

from mew_agent.parts.rehearsal.rehearsal_options import ScriptedToolCall

_MOST_CALLS = 32
_MAX_NAME_CHARS = 200
"""Of a tool that a text can request. Providers accept 128 at most; compiling the pattern of a longer one takes long."""
_VERBS = r"(?:call|use|run|invoke|execute|ask)"
_QUOTED = re.compile(r"\"([^\"\n]{1,400})\"|“([^“”\n]{1,400})”|'([^'\n]{2,400})'(?!\w)")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
_JSON_AHEAD = re.compile(r"[`'\"()\s]*+(?:with|using|and|arguments|args?|parameters|,|:|=|\s)*+(?=\{)", re.IGNORECASE)


def requested_calls(text: str, tools: Sequence[Mapping[str, object]]) -> tuple[ScriptedToolCall, ...]:
    """Return the calls that `text` requests, in order. `tools` have the OpenAI shape."""
    found: dict[int, ScriptedToolCall] = {}
    for name, schema in _offered(tools):
        for match in _mentions(name, text):
            if len(found) == _MOST_CALLS:
                break
            arguments = _json_object_at(text, match.end())
            if arguments is None:
                arguments = _filled(schema, text[: match.start()] + text[match.end() :])
            call = ScriptedToolCall(name=name, arguments=json.dumps(arguments, ensure_ascii=False))
            found.setdefault(match.start(), call)
    return tuple(found[place] for place in sorted(found))


def _offered(tools: Sequence[Mapping[str, object]]) -> list[tuple[str, Mapping[str, object]]]:
    functions = [object_at(tool, "function") for tool in tools]
    named = [(str(one["name"]), object_at(one, "parameters")) for one in functions if "name" in one]
    named = [pair for pair in named if len(pair[0]) <= _MAX_NAME_CHARS]
    # Longer names first, so that `read_file_lines` is not taken for `read_file`.
    return sorted(named, key=lambda pair: -len(pair[0]))


def _mentions(name: str, text: str) -> list[re.Match[str]]:
    """Return the positions where `text` requests the tool: after a verb, or anywhere if the name is no plain word."""
    spellings = [_spelling(name)]
    # `read_file` for `files__read_file` or `files-read_file`
    if (prefixed := re.fullmatch(r"[A-Za-z0-9]+(?:__|[-/.])(?P<short>\w+)", name)) is not None:
        spellings.append(_spelling(prefixed["short"]))
    found: list[re.Match[str]] = []
    for spelling in spellings:
        whole = rf"(?<![\w/]){spelling}(?![\w/])"
        patterns = [rf"\b{_VERBS}\s+(?:the\s+|tool\s+)*[`'\"]?{whole}[`'\"]?", rf"`{spelling}`"]
        if not name.isalpha():
            patterns.append(whole)
        for pattern in patterns:
            for match in islice(re.finditer(pattern, text, re.IGNORECASE), _MOST_CALLS):
                if not any(match.start() < other.end() and other.start() < match.end() for other in found):
                    found.append(match)
    return found


def _spelling(name: str) -> str:
    return "[-_/. ]{1,2}".join(re.escape(part) for part in re.split(r"[-_/.]+", name) if part)


def _json_object_at(text: str, place: int) -> dict[str, object] | None:
    ahead = _JSON_AHEAD.match(text, place)
    if ahead is None:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text, ahead.end())
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _filled(schema: Mapping[str, object], text: str) -> dict[str, object]:
    properties = schema.get("properties")
    required = schema.get("required")
    if not isinstance(properties, Mapping) or not isinstance(required, Sequence):
        return {}
    quoted = iter([next(filter(None, groups)) for groups in _QUOTED.findall(text)])
    numbers = iter(_NUMBER.findall(text))
    arguments: dict[str, object] = {}
    for key in required:
        if isinstance(key, str):
            arguments[key] = _value_for(object_at(properties, key), quoted, numbers, text)
    return arguments


def _value_for(wanted: Mapping[str, object], quoted: Iterator[str], numbers: Iterator[str], text: str) -> object:
    choices = wanted.get("enum")
    if isinstance(choices, Sequence) and choices:
        return next((choice for choice in choices if str(choice) in text), choices[0])
    match wanted.get("type"):
        case "integer":
            return int(float(next(numbers, "0")))
        case "number":
            return float(next(numbers, "0"))
        case "boolean":
            return True
        case "array":
            return list(quoted)
        case "object":
            return {}
        case _:
            return next(quoted, None) or text.strip()
