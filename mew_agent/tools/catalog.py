"""Answers the MCP requests of peers from the tools and resources of this process.

Owns the error codes of JSON-RPC and MCP. Does not know envelopes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mew_protocol.json_values import object_at, well_formed

from mew_agent.errors import MewAgentError, described
from mew_agent.tools.functions import BadArguments, Toolbox, UnknownTool
from mew_agent.tools.peer_offers import OTHER_LISTS
from mew_agent.tools.resources import NoSuchResource, Resources
from mew_agent.tools.results import ToolResult

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
UNAVAILABLE: Final = -32000  # the participant cannot answer now: it is paused, or its server is down
RESOURCE_NOT_FOUND: Final = -32002


@dataclass(eq=False)
class RequestFailed(MewAgentError):
    """A request that is answered with a JSON-RPC error. `code` is a code of JSON-RPC or MCP."""

    code: int
    message: str
    data: Any = None

    def __str__(self) -> str:
        return self.message


class Offers(Protocol):
    """Answers MCP requests."""

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of an MCP request, in the shape of MCP. Raises `RequestFailed`."""


class LocalOffers:
    """The MCP offers of this process: its tools and resources."""

    def __init__(self, toolbox: Toolbox | None = None) -> None:
        self.toolbox = toolbox or Toolbox()
        self.resources = Resources()

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer from the toolbox or the resources. Lists have one page. Raises `RequestFailed`."""
        if method.endswith("/list") and params.get("cursor") is not None:
            raise RequestFailed(INVALID_PARAMS, "invalid cursor: the list has a single page")
        match method:
            case "ping":
                return {}
            case "tools/list":
                tools = [tool.listed() for tool in self.toolbox.tools.values()]
                return with_other_lists({"tools": tools}, ["resources"] if self.resources.resources else [])
            case "tools/call":
                return await self._call(params)
            case "resources/list":
                return {"resources": self.resources.listed()}
            case "resources/templates/list":
                return {"resourceTemplates": self.resources.templates()}
            case "resources/read":
                return await self._read(params)
            case _:
                raise RequestFailed(METHOD_NOT_FOUND, f"method '{method}' is not offered here")

    async def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Run a tool. A failure is a result, not an error, so that the calling model can react to it."""
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise RequestFailed(INVALID_PARAMS, "params must contain a string `name` and an object `arguments`")
        try:
            return ToolResult.from_value(await self.toolbox.call(name, arguments)).to_mcp()
        except (UnknownTool, BadArguments) as error:
            raise RequestFailed(INVALID_PARAMS, well_formed(str(error))) from None
        except Exception as error:
            return ToolResult(_problem(error), is_error=True).to_mcp()

    async def _read(self, params: Mapping[str, Any]) -> dict[str, Any]:
        uri = params.get("uri")
        if not isinstance(uri, str):
            raise RequestFailed(INVALID_PARAMS, "params must contain a string `uri`")
        try:
            return await self.resources.read(uri)
        except NoSuchResource as error:
            raise RequestFailed(RESOURCE_NOT_FOUND, well_formed(str(error)), {"uri": well_formed(uri)}) from None
        except Exception as error:
            raise RequestFailed(INTERNAL_ERROR, _problem(error)) from None


def _problem(error: Exception) -> str:
    """Return the message of an error. For a foreign class, add its name, which often says more than the message."""
    return well_formed(str(error) if isinstance(error, MewAgentError) else described(error))


def with_other_lists(tools: dict[str, Any], others: Sequence[str]) -> dict[str, Any]:
    """Add the names of the other lists to a list of tools, so that peers request no empty lists."""
    if not others:
        return tools
    return {**tools, "_meta": {**object_at(tools, "_meta"), OTHER_LISTS: list(others)}}
