"""Common parts of HTTP servers for participants: API keys, health, spans, and responses to failures.

Does not know which API is served.
"""

import hmac
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from mew_listener.http_connection import admit, bearer_of
from mew_protocol.codec import parse_json
from mew_protocol.errors import DecodeError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mew_agent import tracing
from mew_agent.parts.shared.api_limits import AnswerFailed
from mew_agent.parts.shared.chat_participant import ChatParticipant

logger = logging.getLogger("mew_agent.parts.shared")

KEY_NAME: Final = "mew_agent.api_key_name"
"""Key of the scope under which `KeyCheck` notes the name of the API key."""


class KeyCheck:
    """Requires a named API key for the paths that `requires_key` selects, and stores its name in the scope."""

    def __init__(self, app: ASGIApp, api_keys: Mapping[str, str], requires_key: Callable[[str], bool]) -> None:
        self._app, self._requires_key = app, requires_key
        self._keys = {name: key.encode(errors="replace") for name, key in api_keys.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._requires_key(scope["path"]):
            given = bearer_of(Headers(scope=scope))
            key = (given or "").encode(errors="replace")
            # Compare all keys, so that the response time reveals nothing about them.
            matching = [name for name, known in self._keys.items() if hmac.compare_digest(key, known)]
            if given is None or not matching:
                problem = "wrong API key" if given else "missing API key"
                message = f"{problem}: send the key of this server as `Authorization: Bearer KEY`"
                error = AnswerFailed(HTTPStatus.UNAUTHORIZED, "invalid_api_key", message)
                await error_response(error)(scope, receive, send)
                return
            scope[KEY_NAME] = matching[0]
            admit(scope, matching[0])
        await self._app(scope, receive, send)


class TracedRequests:
    """Opens a span for each `POST`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        sent = dict(scope["headers"]).get(tracing.TRACEPARENT.encode(), b"").decode("latin-1")
        with tracing.span("http", {}, tracing.header_of(sent), method=scope["method"], path=scope["path"]) as span:

            async def send_noting_status(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.facts["status_code"] = message["status"]
                    if message["status"] >= HTTPStatus.INTERNAL_SERVER_ERROR:
                        span.failure = str(message["status"])
                await send(message)

            await self._app(scope, receive, send_noting_status)


def health_routes(participant: ChatParticipant) -> tuple[Route, Route]:
    """Return `/health` and `/ready` of a server that needs the space: `/ready` is 503 while it is not connected."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok" if participant.is_joined else "no_gateway", "space": participant.space})

    async def ready(_: Request) -> Response:
        is_ready = participant.is_joined
        return JSONResponse({"status": "ready" if is_ready else "no_gateway"}, status_code=200 if is_ready else 503)

    return Route("/health", health), Route("/ready", ready)


async def read_json(request: Request) -> Any:
    """Return the JSON body of a request, read by `parse_json`. Raises `AnswerFailed` (400)."""
    try:
        return parse_json(await request.body())
    except DecodeError as error:
        message = f"body: {error.detail} (expected a JSON object)"
        raise AnswerFailed(HTTPStatus.BAD_REQUEST, "invalid_request", message) from None


def error_response(error: AnswerFailed) -> Response:
    """Return the response for an error."""
    # OpenAI's SDKs obey this header; without it they retry by status, for example after every 409.
    headers = {"x-should-retry": "true" if error.is_retryable else "false"}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error.as_dict(), status_code=error.status, headers=headers)


async def _respond_to_failure(request: Request, error: Exception) -> Response:
    """Return the response to a request that raised `error`."""
    match error:
        case AnswerFailed():
            return error_response(error)
        case HTTPException():
            routes = [f"{'POST' if 'POST' in one.methods else 'GET'} {one.path}" for one in request.app.routes]
            message = f"{request.method} {request.url.path}: {error.detail.lower()}; routes: {', '.join(routes)}"
            return error_response(AnswerFailed(error.status_code, "no_such_route", message))
        case ClientDisconnect():
            message = "body: the client closed the connection before it ended"
            return error_response(AnswerFailed(HTTPStatus.BAD_REQUEST, "invalid_request", message))
        case _:
            logger.error("request failed", exc_info=error)
            problem = f"internal error: {type(error).__name__}"
            return error_response(AnswerFailed(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", problem))


FAILURE_HANDLERS: Final = dict.fromkeys((AnswerFailed, HTTPException, ClientDisconnect, Exception), _respond_to_failure)
"""Starlette's handlers for requests that raise one of these."""
