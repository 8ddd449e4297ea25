"""The errors of the HTTP API, and how they are reported: as JSON, with an HTTP status."""

from typing import Any

from mew_protocol import errors
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


class ApiError(HTTPException):
    """A request that is refused: `{"error", "message", ...}` under an HTTP status."""

    def __init__(self, status: int, error: str, message: str, /, **more: Any) -> None:
        super().__init__(status, message, {"www-authenticate": "Bearer"} if status == 401 else None)
        self.body = {"error": error, "message": message, **more}


async def respond_to_error(_request: Request, error: Exception) -> Response:
    """Return as JSON what a handler or the router refuses, and an internal error without its details."""
    if not isinstance(error, HTTPException):
        error = ApiError(500, errors.INTERNAL_ERROR, "the gateway failed to process this request")
    elif not isinstance(error, ApiError):
        names = {404: "not_found", 405: "method_not_allowed"}
        name, headers = names.get(error.status_code, "http_error"), error.headers
        error = ApiError(error.status_code, name, error.detail)
        error.headers = headers
    return JSONResponse(error.body, status_code=error.status_code, headers=error.headers)
