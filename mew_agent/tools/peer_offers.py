"""[pure] What peers say over MCP that they offer, and what their tools answer: read liberally, whoever wrote it.

Owns the shapes: lists may come bare or under their name, a tool's result as MCP content or as any value. It asks
nobody anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
MAX_LISTED: Final = 500
"""Entries of one list that are kept; no model reads more tools than that."""

OTHER_LISTS: Final = "mew/lists"
"""Key in `_meta` of a list of tools: names of the other lists that are worth asking for, such as `resources`."""


class Unreadable(ValueError):
    """A list that is none. Its text says what it is instead."""


@dataclass(frozen=True, slots=True)
class PeerTool:
    """A tool of a peer. `schema` is the JSON Schema of its arguments."""

    peer: str
    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=lambda: NO_ARGUMENTS)


@dataclass(frozen=True, slots=True)
class PeerResource:
    """A resource of a peer, to be read by `resources/read`. `mime_type` None: it did not say.

    Where `is_template`, the URI has `{places}` for whoever reads it to fill.
    """

    peer: str
    uri: str
    name: str = ""
    description: str = ""
    mime_type: str | None = None
    is_template: bool = False


@dataclass(frozen=True, slots=True)
class PeerPrompt:
    """A prompt of a peer, to be fetched by `prompts/get`. `arguments` are the names that it knows."""

    peer: str
    name: str
    description: str = ""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. `cursor` names the next; None: there is none. `others` are lists said to be there, too."""

    entries: tuple[Mapping[str, Any], ...]
    cursor: str | None = None
    others: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Listing:
    """One whole list of a peer, and which others it said that it has."""

    offers: tuple[Any, ...]
    others: frozenset[str] = frozenset()


def read_page(result: object, name: str) -> Page:
    """A page of a list: `{name: [...], nextCursor}`, or only the list. What is no object in it is left out.

    Raises `Unreadable`.
    """
    entries = result.get(name) if isinstance(result, Mapping) else result
    if not isinstance(entries, list | tuple):
        raise Unreadable(f"a list of {name} was expected, not {type(entries).__name__}")
    cursor = result.get("nextCursor") if isinstance(result, Mapping) else None
    kept = tuple(entry for entry in entries if isinstance(entry, Mapping))
    return Page(kept, cursor if isinstance(cursor, str) and cursor else None, _others(result))


def tools_of(peer: str, entries: tuple[Mapping[str, Any], ...]) -> tuple[PeerTool, ...]:
    """The tools in a list, each name once; entries without a name are left out."""
    found: dict[str, PeerTool] = {}
    for entry in entries[:MAX_LISTED]:
        name = _text(entry, "name")
        if name and name not in found:
            found[name] = PeerTool(peer, name, _text(entry, "description"), _schema(entry))
    return tuple(found.values())


def resources_of(peer: str, entries: tuple[Mapping[str, Any], ...]) -> tuple[PeerResource, ...]:
    """The resources and templates in a list, each URI once."""
    found: dict[str, PeerResource] = {}
    for entry in entries[:MAX_LISTED]:
        template, mime_type = _text(entry, "uriTemplate"), _text(entry, "mimeType") or None
        uri = _text(entry, "uri") or template
        if uri:
            told = PeerResource(
                peer, uri, _text(entry, "name"), _text(entry, "description"), mime_type, uri == template
            )
            found.setdefault(uri, told)
    return tuple(found.values())


def prompts_of(peer: str, entries: tuple[Mapping[str, Any], ...]) -> tuple[PeerPrompt, ...]:
    """The prompts in a list, each name once."""
    found: dict[str, PeerPrompt] = {}
    for entry in entries[:MAX_LISTED]:
        name, listed = _text(entry, "name"), entry.get("arguments")
        arguments = [_text(one, "name") for one in _entries(listed) if isinstance(one, Mapping)]
        if name:
            told = PeerPrompt(peer, name, _text(entry, "description"), tuple(filter(None, arguments)))
            found.setdefault(name, told)
    return tuple(found.values())


def _schema(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's schema under any of its names; model servers want an object with properties."""
    for key in ("inputSchema", "input_schema", "parameters"):
        schema = entry.get(key)
        if isinstance(schema, Mapping) and schema.get("type", "object") == "object":
            return {"type": "object", "properties": {}, **schema}
    return NO_ARGUMENTS


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""


def _others(result: object) -> frozenset[str]:
    meta = result.get("_meta") if isinstance(result, Mapping) else None
    told = meta.get(OTHER_LISTS) if isinstance(meta, Mapping) else None
    return frozenset(name for name in _entries(told) if isinstance(name, str))


def _entries(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()
