"""Python functions as MCP resources: content that peers read by URI or by URI template (`notes://{day}`)."""

import base64
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from mew_protocol.json_values import well_formed
from pydantic_core import to_json

from mew_agent.errors import MewAgentError
from mew_agent.tools.functions import Watched, run_function

ResourceFunction = Callable[..., Any]

MAX_URI_CHARS: Final = 2_000
"""Longer addresses match no template: two placeholders in one segment take quadratic time."""

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_]\w*)\}")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(eq=False)
class NoSuchResource(MewAgentError):
    """No resource has this URI."""

    uri: str

    def __str__(self) -> str:
        return f"no resource '{self.uri}'"


class Resource(NamedTuple):
    """A resource: each read calls its function for the content.

    Text is sent as text, bytes as a blob, everything else as JSON. `mime_type` overrides the derived type.
    """

    uri: str
    """With `{placeholders}` it is a template: each matches one path segment and is an argument of the function."""
    name: str
    description: str
    function: ResourceFunction
    mime_type: str | None = None

    @classmethod
    def from_function(
        cls,
        function: ResourceFunction,
        uri: str,
        *,
        name: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
    ) -> "Resource":
        """Make a resource from a function; its docstring is the description. A plain name becomes `resource:///name`.

        Raises `TypeError` if the function's arguments and the URI's placeholders differ.
        """
        address = uri if _SCHEME.match(uri) else f"resource:///{quote(uri, safe='/{}')}"
        placeholders, arguments = set(_PLACEHOLDER.findall(address)), set(inspect.signature(function).parameters)
        if placeholders != arguments:
            raise TypeError(
                f"resource '{uri}': its placeholders are {sorted(placeholders)}, the arguments of its function"
                f" {sorted(arguments)}"
            )
        text = description or inspect.getdoc(function) or ""
        return cls(address, name or (function.__name__ if address == uri else uri), text, function, mime_type)

    @property
    def is_template(self) -> bool:
        """Whether the URI has placeholders."""
        return _PLACEHOLDER.search(self.uri) is not None

    def arguments_in(self, uri: str) -> dict[str, str] | None:
        """Return the decoded values of the placeholders in `uri`; None if it does not match."""
        if len(uri) > MAX_URI_CHARS:
            return None
        parts = _PLACEHOLDER.split(self.uri)
        pattern = "".join(
            re.escape(part) if index % 2 == 0 else f"(?P<{part}>[^/?#]+)" for index, part in enumerate(parts)
        )
        match = re.fullmatch(pattern, uri)
        return None if match is None else {name: unquote(value) for name, value in match.groupdict().items()}

    def listed(self) -> dict[str, Any]:
        """Return the resource's entry in `resources/list` or `resources/templates/list`."""
        key = "uriTemplate" if self.is_template else "uri"
        more = {"description": self.description, "mimeType": self.mime_type}
        return {key: self.uri, "name": self.name, **{key: value for key, value in more.items() if value}}

    async def read(self, uri: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Return the result of `resources/read`. Raises the errors of the function and of `run_function`."""
        value = await run_function(self.function, arguments)
        return {"contents": [{"uri": uri, **_content(value, self.mime_type)}]}


class Resources(Watched):
    """Resources by their URI. `on_change` is called after each change."""

    def __init__(self) -> None:
        super().__init__()
        self.resources: dict[str, Resource] = {}

    def add(self, resource: Resource) -> None:
        """Add a resource; the URI must be free."""
        if resource.uri in self.resources:
            raise ValueError(f"resource '{resource.uri}' already exists")
        self.resources[resource.uri] = resource
        self._changed()

    def remove(self, uri: str) -> Resource:
        """Withdraw a resource and return it. Raises `NoSuchResource`."""
        if uri not in self.resources:
            raise NoSuchResource(uri)
        resource = self.resources.pop(uri)
        self._changed()
        return resource

    def listed(self) -> list[dict[str, Any]]:
        """Return the entries of `resources/list`."""
        return [resource.listed() for resource in self.resources.values() if not resource.is_template]

    def templates(self) -> list[dict[str, Any]]:
        """Return the entries of `resources/templates/list`."""
        return [resource.listed() for resource in self.resources.values() if resource.is_template]

    async def read(self, uri: str) -> dict[str, Any]:
        """Read a resource. An exact URI wins over templates. Raises `NoSuchResource`, or the function's error."""
        exact = [self.resources[uri]] if uri in self.resources else []
        for resource in [*exact, *self.resources.values()]:
            arguments = resource.arguments_in(uri)
            if arguments is not None:
                return await resource.read(uri, arguments)
        raise NoSuchResource(uri)


def _content(value: Any, mime_type: str | None) -> dict[str, Any]:
    match value:
        case str():
            return {"mimeType": mime_type or "text/plain", "text": well_formed(value)}
        case bytes() | bytearray():
            return {"mimeType": mime_type or "application/octet-stream", "blob": base64.b64encode(value).decode()}
        case _:
            return {"mimeType": mime_type or "application/json", "text": to_json(value).decode()}
