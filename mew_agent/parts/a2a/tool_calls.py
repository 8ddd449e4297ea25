"""The tools of a participant for A2A clients.

Recognises data parts that are calls, describes the tools in cards and answers, and writes the parts of a result. Calls
nothing.
"""

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from a2a.helpers import new_data_part, new_raw_part, new_text_part
from a2a.types import AgentExtension, AgentSkill, Part
from google.protobuf.json_format import MessageToDict
from mew_protocol.json_values import value_at

from mew_agent.tools.peer_offers import PeerTool
from mew_agent.tools.results import ToolResult

TOOLS_EXTENSION: Final = "urn:mew:tools:v1"
"""URI of the extension of a card that lists the tools with their schemas."""

A2ARole = Literal["agent", "tool", "person"]
"""How a participant answers: an agent works on a chat, a tool answers calls, and a person answers after reading."""

CALL: Final = '{"tool": NAME, "arguments": {...}}'
JSON: Final = "application/json"


def call_in(parts: Sequence[Part], *, reads_text: bool = False) -> tuple[str, Mapping[str, Any]] | None:
    """Return the tool and arguments requested by a message's only data part; None if it requests no call.

    With `reads_text` a JSON text may also request one.
    """
    data = _data_in(parts, reads_text=reads_text)
    if not isinstance(data, Mapping) or not isinstance(data.get("tool"), str):
        return None
    arguments = data.get("arguments", {})
    return (data["tool"], arguments) if isinstance(arguments, Mapping) else None


def _data_in(parts: Sequence[Part], *, reads_text: bool) -> object:
    found = [part for part in parts if part.HasField("data")]
    if len(found) == 1:
        return _with_whole_numbers(MessageToDict(found[0].data))
    if not reads_text or found:
        return None
    try:
        return json.loads("".join(part.text for part in parts))
    except ValueError:
        return None


def _with_whole_numbers(value: Any) -> Any:
    """Return the same value with 3 for 3.0: protobuf only has floating-point numbers."""
    if isinstance(value, dict):
        return {key: _with_whole_numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def skills_of(tools: Iterable[PeerTool]) -> list[AgentSkill]:
    """Return a skill of the card for each tool."""
    return [
        AgentSkill(
            id=tool.name,
            name=tool.title or tool.name,
            description=tool.description or tool.name,
            tags=["tool"],
            input_modes=[JSON],
            output_modes=["text/plain", JSON],
        )
        for tool in tools
    ]


def extension_of(tools: Iterable[PeerTool]) -> AgentExtension:
    """Return the card's extension with the tools' schemas, which skills cannot contain."""
    about = f"Tools that a message with one data part {CALL} calls."
    return AgentExtension(uri=TOOLS_EXTENSION, description=about, params=_listing(tools))


def offer_of(name: str, tools: Sequence[PeerTool]) -> list[Part]:
    """Return a tool participant's answer to a text: the list of its tools."""
    lines = [f"- {tool.name}: {tool.description}".rstrip(": ") for tool in tools]
    text = f"'{name}' only runs tools. Send one data part {CALL}. Its tools:\n"
    return [new_text_part(text + "\n".join(lines)), new_data_part(_listing(tools))]


def _listing(tools: Iterable[PeerTool]) -> dict[str, Any]:
    return {
        "tools": [
            {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.schema)} for tool in tools
        ]
    }


def parts_of(result: ToolResult) -> list[Part]:
    """Return the parts of a result: its text, its structured content, and its images."""
    parts = [new_text_part(result.text)]
    if isinstance(structured := value_at(result.content, "structuredContent"), Mapping):
        parts.append(new_data_part(dict(structured), media_type=JSON))
    return parts + [new_raw_part(b64decode(one.data), media_type=one.mime_type) for one in result.images]
