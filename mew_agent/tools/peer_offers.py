"""[pure] Reads the lists of tools, resources and prompts that peers send over MCP. Drops invalid entries."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from mew_protocol.json_values import object_at, objects_at, text_at, value_at

NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
MAX_LISTED: Final = 500
"""How many entries of one list are read: no model needs more tools."""

MAX_ENTRY_BYTES: Final = 64 * 1024
MAX_LIST_BYTES: Final = 512 * 1024
"""Maximum size of an entry and of all entries of a list, as JSON. Further entries are omitted, in the peer's order."""

MAX_NAME_CHARS: Final = 256

OTHER_LISTS: Final = "mew/lists"
"""Key in `_meta` of a list of tools: the names of other lists that are not empty, such as `resources`."""

LIST_CHANGED: Final = {name: f"notifications/{name}/list_changed" for name in ("tools", "resources", "prompts")}
"""The notification that a list has changed, by the name of the list."""


class InvalidList(ValueError):
    """An answer that is not a list. The message names its type."""


class PeerTool(NamedTuple):
    """A tool of a peer. `schema` is the JSON Schema of its arguments.

    `title`, `annotations` (hints such as `readOnlyHint`) and `output_schema` are unchanged from the peer.
    """

    peer: str
    name: str
    description: str = ""
    schema: Mapping[str, Any] = NO_ARGUMENTS
    title: str = ""
    annotations: Mapping[str, Any] = MappingProxyType({})
    output_schema: Mapping[str, Any] | None = None


class PeerResource(NamedTuple):
    """A resource of a peer, to read with `resources/read`. `mime_type` is None if the peer did not send one.

    If `is_template`, the URI has `{placeholders}` that the reader fills in.
    """

    peer: str
    uri: str
    name: str = ""
    description: str = ""
    mime_type: str | None = None
    is_template: bool = False


class PeerPrompt(NamedTuple):
    """A prompt of a peer, to fetch with `prompts/get`. `arguments` are the names of its arguments."""

    peer: str
    name: str
    description: str = ""
    arguments: tuple[str, ...] = ()


class PeerList:
    """One list of a peer, such as `tools`, read page by page within the limits."""

    def __init__(self, peer: str, name: str) -> None:
        self.peer, self.name = peer, name
        self.entries: list[Mapping[str, Any]] = []
        self.others: set[str] = set()
        """The further lists that the peer announced."""
        self.left_out = 0
        """At least so many entries are too much to read."""
        self.is_full = False
        """Whether no further page is worth a request."""
        self._bytes = 0

    def add(self, result: object) -> str | None:
        """Add a page: `{name: [...], nextCursor}`, or the bare list. Raises `InvalidList`.

        Entries above the limit are only counted. Returns the cursor of the next page, if any.
        """
        entries = result.get(self.name) if isinstance(result, Mapping) else result
        if not isinstance(entries, list | tuple):
            raise InvalidList(f"expected a list of {self.name}, not {type(entries).__name__}")
        for entry in objects_at(entries):
            self._add_entry(entry)
        self.is_full = self.is_full or self.left_out >= MAX_LISTED
        others = value_at(result, "_meta", OTHER_LISTS)
        self.others.update(name for name in (others if isinstance(others, list) else ()) if isinstance(name, str))
        return text_at(result, "nextCursor") or None

    def _add_entry(self, entry: Mapping[str, Any]) -> None:
        size = len(json.dumps(entry, default=str))
        is_too_large = size > MAX_ENTRY_BYTES or len(text_at(entry, "name")) > MAX_NAME_CHARS
        if not is_too_large:
            self.is_full = self.is_full or len(self.entries) >= MAX_LISTED or self._bytes + size > MAX_LIST_BYTES
        if is_too_large or self.is_full:
            self.left_out += 1
        else:
            self.entries.append(entry)
            self._bytes += size

    @property
    def offers(self) -> tuple[Any, ...]:
        """The offers: the first entry for each name (or URI); entries without one are dropped."""
        read, key = _READERS[self.name]
        found: dict[str, Any] = {}
        for entry in self.entries:
            offer = read(self.peer, entry)
            found.setdefault(getattr(offer, key), offer)
        found.pop("", None)
        return tuple(found.values())


def _tool(peer: str, entry: Mapping[str, Any]) -> PeerTool:
    hints, output_schema = object_at(entry, "annotations"), entry.get("outputSchema")
    return PeerTool(
        peer,
        text_at(entry, "name"),
        text_at(entry, "description"),
        _schema(entry),
        text_at(entry, "title") or text_at(hints, "title"),  # older servers send it among the annotations
        hints,
        output_schema if isinstance(output_schema, Mapping) else None,
    )


def _resource(peer: str, entry: Mapping[str, Any]) -> PeerResource:
    template, mime_type = text_at(entry, "uriTemplate"), text_at(entry, "mimeType") or None
    uri, about = text_at(entry, "uri") or template, (text_at(entry, "name"), text_at(entry, "description"))
    return PeerResource(peer, uri, *about, mime_type, uri == template)


def _prompt(peer: str, entry: Mapping[str, Any]) -> PeerPrompt:
    arguments = [text_at(one, "name") for one in objects_at(entry, "arguments")]
    return PeerPrompt(peer, text_at(entry, "name"), text_at(entry, "description"), tuple(filter(None, arguments)))


def _schema(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a tool under any of its keys. Model servers require an object with properties."""
    for key in ("inputSchema", "input_schema", "parameters"):
        schema = entry.get(key)
        if isinstance(schema, Mapping) and schema.get("type", "object") == "object":
            return {"type": "object", "properties": {}, **schema}
    return NO_ARGUMENTS


_READERS: Final[Mapping[str, tuple[Callable[[str, Mapping[str, Any]], Any], str]]] = {
    "tools": (_tool, "name"),
    "resources": (_resource, "uri"),
    "resourceTemplates": (_resource, "uri"),
    "prompts": (_prompt, "name"),
}
"""The reader of an entry of a list, and the key of its result."""
