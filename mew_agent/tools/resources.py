"""Python functions as MCP resources: things peers can read by their URI.

Owns the matching of URIs, also those with places in them (`notes://{day}`), and the shape of what is read. Owns no
transport: peers ask through the MCP side of a participant.
"""

import base64
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote

from pydantic_core import to_json

from mew_agent.errors import MewAgentError
from mew_agent.tools.functions import outcome_of
from mew_agent.tools.results import well_formed

ResourceFunction = Callable[..., Any]

_PLACE: Final = re.compile(r"\{([A-Za-z_]\w*)\}")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(eq=False)
class NoSuchResource(MewAgentError):
    """Nothing here has this URI."""

    uri: str

    def __str__(self) -> str:
        return f"no resource '{self.uri}'"


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing to read: what its function returns when it is asked for.

    Text is sent as text, bytes as a blob, everything else as JSON; `mime_type` overrides what follows from that.
    """

    uri: str
    """With `{places}` it is a template: each stands for one path segment, and is an argument of the function."""
    name: str
    description: str
    function: ResourceFunction
    mime_type: str | None = None

    @classmethod
    def of(
        cls,
        function: ResourceFunction,
        uri: str,
        *,
        name: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
    ) -> "Resource":
        """A resource from a function; its docstring is the description. A name alone becomes `resource:///name`.

        Raises `TypeError` when the function's arguments are not the places of the URI.
        """
        address = uri if _SCHEME.match(uri) else f"resource:///{quote(uri, safe='/{}')}"
        places, arguments = set(_PLACE.findall(address)), set(inspect.signature(function).parameters)
        if places != arguments:
            raise TypeError(
                f"resource '{uri}': its places are {sorted(places)}, the arguments of its function {sorted(arguments)}"
            )
        told = description or inspect.getdoc(function) or ""
        return cls(address, name or (function.__name__ if address == uri else uri), told, function, mime_type)

    @property
    def is_template(self) -> bool:
        """Whether the URI stands for many."""
        return _PLACE.search(self.uri) is not None

    def arguments_in(self, uri: str) -> dict[str, str] | None:
        """What stands at the places of a URI, decoded; None when it is not one of ours."""
        parts = _PLACE.split(self.uri)
        pattern = "".join(re.escape(part) if at % 2 == 0 else f"(?P<{part}>[^/?#]+)" for at, part in enumerate(parts))
        match = re.fullmatch(pattern, uri)
        return None if match is None else {place: unquote(value) for place, value in match.groupdict().items()}

    def listed(self) -> dict[str, Any]:
        """As `resources/list` and `resources/templates/list` show it."""
        key = "uriTemplate" if self.is_template else "uri"
        more = {"description": self.description, "mimeType": self.mime_type}
        return {key: self.uri, "name": self.name, **{key: value for key, value in more.items() if value}}

    async def read(self, uri: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        """The result of `resources/read`. Raises what the function raises, and what `outcome_of` does."""
        value = await outcome_of(self.function, arguments)
        return {"contents": [{"uri": uri, **_content(value, self.mime_type)}]}


@dataclass
class Resources:
    """Resources by their URI. `on_change` is called after each change."""

    resources: dict[str, Resource] = field(default_factory=dict)
    on_change: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def add(self, resource: Resource) -> None:
        """Add a resource; the URI must be free."""
        if resource.uri in self.resources:
            raise ValueError(f"there is a resource '{resource.uri}' already")
        self.resources[resource.uri] = resource
        self._changed()

    def remove(self, uri: str) -> Resource:
        """Offer a resource no longer, and return it. Raises `NoSuchResource`."""
        if uri not in self.resources:
            raise NoSuchResource(uri)
        resource = self.resources.pop(uri)
        self._changed()
        return resource

    def listed(self) -> list[dict[str, Any]]:
        """What `resources/list` shows."""
        return [resource.listed() for resource in self.resources.values() if not resource.is_template]

    def templates(self) -> list[dict[str, Any]]:
        """What `resources/templates/list` shows."""
        return [resource.listed() for resource in self.resources.values() if resource.is_template]

    async def read(self, uri: str) -> dict[str, Any]:
        """Read one; an exact URI goes before templates. Raises `NoSuchResource`, or whatever its function raises."""
        exact = [self.resources[uri]] if uri in self.resources else []
        for resource in [*exact, *self.resources.values()]:
            arguments = resource.arguments_in(uri)
            if arguments is not None:
                return await resource.read(uri, arguments)
        raise NoSuchResource(uri)

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()


def _content(value: Any, mime_type: str | None) -> dict[str, Any]:
    match value:
        case str():
            return {"mimeType": mime_type or "text/plain", "text": well_formed(value)}
        case bytes() | bytearray():
            return {"mimeType": mime_type or "application/octet-stream", "blob": base64.b64encode(value).decode()}
        case _:
            return {"mimeType": mime_type or "application/json", "text": to_json(value).decode()}
