"""The MCP side of a participant: answers `mcp/request`s of peers from its toolbox.

Owns the JSON-RPC error codes and the result shape. Asking peers is the participant's `request`.
"""

from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from mew_agent.tools import BadArguments, Toolbox, UnknownTool, as_text, well_formed
from protocol.envelope import Envelope
from protocol.payloads.mcp import Request

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
PAUSED: Final = -32000


async def answer(envelope: Envelope, toolbox: Toolbox, *, is_paused: bool) -> dict[str, Any]:
    """The payload of the `mcp/response` to a request. Never raises: what goes wrong is in the answer."""
    try:
        request = Request.model_validate(envelope.body)
    except ValidationError:
        return _failure(None, INVALID_REQUEST, "payload.method is missing")
    if is_paused:
        return _failure(request.id, PAUSED, "paused")
    params = request.params or {}
    match request.method:
        case "ping":
            return _success(request.id, {})
        case "tools/list":
            tools = [
                {"name": t.name, "description": t.description, "inputSchema": t.schema} for t in toolbox.tools.values()
            ]
            return _success(request.id, {"tools": tools})
        case "tools/call":
            return await _call(request, params, toolbox)
        case method:
            return _failure(request.id, METHOD_NOT_FOUND, f"method '{method}' is not offered here")


async def _call(request: Request, params: dict[str, Any], toolbox: Toolbox) -> dict[str, Any]:
    name, arguments = params.get("name"), params.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return _failure(request.id, INVALID_PARAMS, "params need a `name` and an object `arguments`")
    try:
        return _success(request.id, _as_result(await toolbox.call(name, arguments)))
    except (UnknownTool, BadArguments) as error:
        return _failure(request.id, INVALID_PARAMS, well_formed(str(error)))
    except Exception as error:
        text = well_formed(f"{type(error).__name__}: {error}")
        return _success(request.id, {"content": [{"type": "text", "text": text}], "isError": True})


def _as_result(result: Any) -> dict[str, Any]:
    """An MCP result: as the tool made it if it is one, else its text. Raises for what cannot be sent."""
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        sendable: dict[str, Any] = from_json(to_json(result))
        return sendable
    return {"content": [{"type": "text", "text": as_text(result)}]}


def _success(request_id: int | str | None, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", **_id(request_id), "result": result}


def _failure(request_id: int | str | None, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", **_id(request_id), "error": {"code": code, "message": message}}


def _id(request_id: int | str | None) -> dict[str, Any]:
    return {} if request_id is None else {"id": request_id}
