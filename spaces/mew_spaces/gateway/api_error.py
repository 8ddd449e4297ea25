"""The errors of the HTTP API, and how they are reported: as JSON, with an HTTP status."""

from typing import Any

from mew_protocol import errors
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


class ApiError(Exception):
    """A request that is refused: `{"error", "message", ...}` under an HTTP status."""

    def __init__(self, status: int, error: str, message: str, /, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": error, "message": message, **more}


async def respond_to_api_error(_request: Request, error: Exception) -> Response:
    """Return a refusal as JSON."""
    assert isinstance(error, ApiError)
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else None
    return JSONResponse(error.body, status_code=error.status, headers=headers)


async def respond_to_http_exception(_request: Request, exception: Exception) -> Response:
    """Return what the router refuses as JSON."""
    assert isinstance(exception, HTTPException)
    names = {404: "not_found", 405: "method_not_allowed"}
    error = names.get(exception.status_code, "http_error")
    return JSONResponse(
        {"error": error, "message": exception.detail}, status_code=exception.status_code, headers=exception.headers
    )


async def respond_to_failure(_request: Request, _error: Exception) -> Response:
    """Return an internal error as JSON, without its details."""
    body = {"error": errors.INTERNAL_ERROR, "message": "the gateway failed to process this request"}
    return JSONResponse(body, status_code=500)
