"""The MCP side of a participant: answers `mcp/request`s of peers from what it offers.

Owns the JSON-RPC shape of answers. What is offered is behind `Offers`; asking peers is the participant's `request`.
"""

from typing import Any

from mew_protocol.envelope import Envelope
from mew_protocol.payloads.mcp import Request
from pydantic import ValidationError

from mew_agent.tools.catalog import INTERNAL_ERROR, INVALID_REQUEST, UNAVAILABLE, Offers, RequestFailed
from mew_agent.tools.results import well_formed


async def answer(envelope: Envelope, offers: Offers, *, is_paused: bool) -> dict[str, Any]:
    """The payload of the `mcp/response` to a request. Never raises: what goes wrong is in the answer."""
    try:
        request = Request.model_validate(envelope.body)
    except ValidationError:
        return failure(None, RequestFailed(INVALID_REQUEST, "payload.method is missing"))
    if is_paused:
        return failure(request.id, RequestFailed(UNAVAILABLE, "paused"))
    try:
        result = await offers.request(request.method, request.params or {})
    except RequestFailed as error:
        return failure(request.id, error)
    except Exception as error:
        return failure(request.id, RequestFailed(INTERNAL_ERROR, well_formed(f"{type(error).__name__}: {error}")))
    return {"jsonrpc": "2.0", **_id(request.id), "result": result}


def failure(request_id: int | str | None, error: RequestFailed) -> dict[str, Any]:
    """The payload of a response that says why there is no result."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    return {"jsonrpc": "2.0", **_id(request_id), "error": body if error.data is None else {**body, "data": error.data}}


def _id(request_id: int | str | None) -> dict[str, Any]:
    return {} if request_id is None else {"id": request_id}
