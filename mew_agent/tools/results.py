"""[pure] The outcome of a tool call as a value: its text, whether the call failed, and the content as returned."""

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mew_protocol.json_values import value_at, well_formed
from pydantic_core import from_json, to_json, to_jsonable_python

from mew_agent.errors import NotPermitted, Refused, Rejected, message_of
from mew_agent.model.image import Image

ERROR_PREFIX: Final = "Error: "
"""How the model recognizes a failed call: the chat completions format has no field for it."""

NO_OUTPUT: Final = "(no result)"

MAX_IMAGES: Final = 8
"""How many images of one result a model gets; the text names all of them."""

_IMAGE_TYPE: Final = re.compile(r"image/[a-zA-Z0-9.+-]+")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of one tool call.

    `content` is the tool's unchanged result; None if the call failed before it. `text` is the content as text for
    models and people, safe to encode as UTF-8. With `is_error`, `text` has the error; with `is_refused`, the call was
    not permitted or a participant rejected it.
    """

    text: str
    is_error: bool = False
    content: Any = None
    is_refused: bool = False

    @classmethod
    def from_value(cls, value: Any) -> "ToolResult":
        """Read the return value of one of our own functions: text, MCP content, or a JSON value.

        Raises `PydanticSerializationError` for other values.
        """
        if is_mcp_result(value):
            return cls(well_formed(_mcp_text(value) or _json(value)), value.get("isError") is True, value)
        return cls(well_formed(value if isinstance(value, str) else _json(value)), content=value)

    @classmethod
    def from_peer(cls, raw: Any) -> "ToolResult":
        """Read the answer of a peer's tool: MCP content if it has that form, else the unchanged value."""
        is_error = value_at(raw, "isError") is True
        return cls(well_formed(_peer_text(raw)), is_error, raw)

    @classmethod
    def from_error(cls, error: Exception) -> "ToolResult":
        """Make the result of a failed call: its text is the error's message, or else its class name."""
        is_refused = isinstance(error, NotPermitted | Refused | Rejected)
        return cls(well_formed(message_of(error)), is_error=True, is_refused=is_refused)

    @property
    def prompt_text(self) -> str:
        """The text for the model. A failure starts with "Error: ", and no result is empty."""
        text = self.text or NO_OUTPUT
        return f"{ERROR_PREFIX}{text}" if self.is_error and not text.startswith(ERROR_PREFIX) else text

    @property
    def images(self) -> tuple[Image, ...]:
        """The images in MCP content, at most `MAX_IMAGES`. Leaves out undecodable ones."""
        parts = self.content["content"] if is_mcp_result(self.content) else ()
        return tuple(filter(None, map(_image, parts)))[:MAX_IMAGES]

    def to_mcp(self) -> dict[str, Any]:
        """Return the result of an MCP `tools/call` request: the unchanged content if it has that form, else its text.

        Adds an object returned by a function as `structuredContent`.
        """
        if is_mcp_result(self.content):
            sendable: dict[str, Any] = from_json(to_json(self.content))
            return sendable
        content = {"content": [{"type": "text", "text": self.text}]}
        if self.is_error:
            return {**content, "isError": True}
        # Read from the text, which is safe to encode; JSON has no NaN.
        value = None if isinstance(self.content, str | None) else from_json(self.text)
        if not isinstance(value, dict):
            return content
        return {**content, "structuredContent": from_json(to_json(value, inf_nan_mode="null"))}


def is_mcp_result(value: Any) -> bool:
    """Return whether a value is an MCP tool result: a mapping with a `content` of typed parts."""
    content = value_at(value, "content")
    return isinstance(content, list | tuple) and all(
        isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in content
    )


def prompt_texts(results: Mapping[str, ToolResult]) -> dict[str, str]:
    """Return the `prompt_text` of each result, by call id."""
    return {call_id: result.prompt_text for call_id, result in results.items()}


def images_in(results: Mapping[str, ToolResult]) -> dict[str, tuple[Image, ...]]:
    """Return the images of each result that has any, by call id."""
    return {call_id: images for call_id, result in results.items() if (images := result.images)}


def _peer_text(raw: Any) -> str:
    """Return a peer's answer as text. Accepts parts of any type, because peers send content that MCP does not
    define.
    """
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, Mapping) and isinstance(raw.get("content"), list | tuple):
        return _mcp_text(raw)
    structured = value_at(raw, "structuredContent")
    return _json(raw if structured is None else structured)


def _mcp_text(result: Mapping[str, Any]) -> str:
    """Return the parts of MCP content, one per line, or the structured content if the parts are empty."""
    parts = [_part_text(part) for part in result["content"]]
    structured = result.get("structuredContent")
    return "\n".join(parts) if any(parts) or structured is None else _json(structured)


def _part_text(part: object) -> str:
    """Return one part of MCP content; for a part without text, its name."""
    if not isinstance(part, Mapping):
        return str(part)
    resource = part.get("resource")
    match part.get("type"):
        case "image" if _image(part) is not None:
            return f"[image of type {part['mimeType']}]"
        case "image" | "audio" as kind:
            return f"[{kind} of type {part.get('mimeType', 'unknown')}, not shown]"
        case "resource_link":
            return f"[resource {part.get('uri')}]"
        case "resource" if isinstance(resource, Mapping):
            text = resource.get("text")
            return text if isinstance(text, str) else f"[resource {resource.get('uri')}, not shown]"
    text = part.get("text")
    return text if isinstance(text, str) else _json(part)


def _image(part: object) -> Image | None:
    """Return the image in a part of MCP content; None for other parts, and for invalid data, which model servers
    refuse.
    """
    if not isinstance(part, Mapping) or part.get("type") != "image":
        return None
    mime_type, data = part.get("mimeType"), part.get("data")
    if not isinstance(mime_type, str) or not _IMAGE_TYPE.fullmatch(mime_type) or not isinstance(data, str):
        return None
    try:
        b64decode(data, validate=True)
    except ValueError:
        return None
    return Image(mime_type, data) if data else None


def _json(value: Any) -> str:
    return json.dumps(to_jsonable_python(value), ensure_ascii=False)
