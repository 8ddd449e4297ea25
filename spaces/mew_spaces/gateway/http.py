"""The gateway's HTTP side: health, participants, board, events, messages, and the dashboard's files.

Reads requests and writes answers. Who may do what is decided where it is decided for sockets; a message that
comes by HTTP takes the very same way.
"""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mew_protocol import errors
from mew_protocol.codec import decode_envelope
from mew_protocol.errors import DecodeError
from mew_protocol.ids import ParticipantId
from mew_protocol.version import PROTOCOL
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mew_spaces.gateway.events import event_stream
from mew_spaces.gateway.openapi import openapi_document
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.service import NOT_STORED_MESSAGE, SpaceService
from mew_spaces.log.interface import Position

FEATURES = ("capabilities", "context", "validation", "http-io")

DEFAULT_POLL, MAX_POLL = 100, 1_000
"""How many messages one poll brings, unless told otherwise and at most."""

DASHBOARD = Path(__file__).parents[1] / "dashboard"

_ASSET = re.compile(r"[a-z0-9][a-z0-9_-]*\.(?:js|css|svg|png|ico)")

_SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_STATUS = {
    errors.CAPABILITY_VIOLATION: 403,
    errors.IDENTITY_MISMATCH: 403,
    errors.UNAUTHORIZED: 403,
    errors.GRANT_EXCEEDS_OWN: 403,
    errors.PAUSED: 403,
    errors.STREAM_NOT_FOUND: 404,
    errors.PARTICIPANT_NOT_FOUND: 404,
    errors.ALREADY_EXISTS: 409,
    errors.TOO_LARGE: 413,
    errors.LIMIT_EXCEEDED: 429,
    errors.RATE_LIMITED: 429,
    errors.NOT_STORED: 503,
}
"""HTTP's word for a refusal; everything else is a bad request."""


def bearer_of(headers: Headers) -> str | None:
    """The token of an `Authorization: Bearer` header."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


class SecurityHeaders:
    """Adds the headers that keep a browser from being turned against its user to every HTTP answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything through; answers leave with the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_SECURITY_HEADERS]
            await send(message)

        await self._app(scope, receive, send_secured)


class Problem(Exception):
    """A request that is refused: `{"error", "message", ...}` under an HTTP status."""

    def __init__(self, status: int, error: str, message: str, /, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": error, "message": message, **more}


async def answer_problem(_request: Request, problem: Exception) -> Response:
    """A refusal as JSON."""
    assert isinstance(problem, Problem)
    headers = {"www-authenticate": "Bearer"} if problem.status == 401 else None
    return JSONResponse(problem.body, status_code=problem.status, headers=headers)


async def answer_http_exception(_request: Request, exception: Exception) -> Response:
    """What the router itself refuses, as JSON."""
    assert isinstance(exception, HTTPException)
    names = {404: "not_found", 405: "method_not_allowed"}
    error = names.get(exception.status_code, "http_error")
    return JSONResponse(
        {"error": error, "message": exception.detail}, status_code=exception.status_code, headers=exception.headers
    )


async def answer_failure(_request: Request, _error: Exception) -> Response:
    """Our own failure, without its details."""
    body = {"error": errors.INTERNAL_ERROR, "message": "the gateway failed on this request"}
    return JSONResponse(body, status_code=500)


Handler = Callable[[Request], Awaitable[Response]]


class HttpRoutes:
    """The HTTP routes over the spaces of a gateway."""

    def __init__(self, registry: SpaceRegistry, *, version: str) -> None:
        self._registry = registry
        self._version = version

    def routes(self) -> list[BaseRoute]:
        """All of them."""
        return [
            Route("/health", self.health),
            Route("/participants", self.participants),
            Route("/openapi.json", self.openapi),
            Route("/participants/{participant}/messages", self.post_message, methods=["POST"]),
            Route("/participants/{participant}/messages", self.poll_messages, methods=["GET"]),
            Route("/spaces/{space}/context", self.context),
            Route("/spaces/{space}/events", self.events),
            Route("/", self.to_dashboard),
            Route("/dashboard", self.dashboard),
            Route("/dashboard/{asset}", self.dashboard_asset),
        ]

    async def health(self, _request: Request) -> Response:
        """That the gateway lives."""
        return JSONResponse(
            {
                "status": "ok",
                "spaces": len(self._registry),
                "clients": self._registry.connections,
                "uptime": self._registry.default.uptime_seconds(),
                "features": list(FEATURES),
                "version": self._version,
                "protocol": PROTOCOL,
            }
        )

    async def participants(self, request: Request) -> Response:
        """Who belongs to the space and who is here."""
        board = self._registry.find(request.query_params.get("space"), bearer_of(request.headers))
        views = board.snapshot().participants if board is not None else ()
        listed = [
            {"id": view.id, "connected": view.connected, "capabilities": list(view.capabilities)} for view in views
        ]
        return JSONResponse({"participants": listed})

    async def post_message(self, request: Request) -> Response:
        """One envelope, as if its sender had sent it by a socket."""
        board, sender = self._identify(request, request.query_params.get("space"), is_owner=True)
        limits = board.config.limits
        try:
            body = await _body(request, limits.http_body_bytes)
            draft = decode_envelope(body, max_depth=limits.json_depth)
        except DecodeError as problem:
            raise Problem(400, problem.error, problem.detail, code=problem.code) from None
        receipt = board.inject(sender, draft)
        if receipt.refused is not None:
            more = receipt.refused.model_dump(mode="json", exclude_none=True, exclude={"error", "message"})
            error, message = receipt.refused.error, receipt.refused.message or ""
            raise Problem(_STATUS.get(error, 400), error, message, **more, **receipt.answer)
        envelope = receipt.accepted
        assert envelope is not None
        if not await board.stored():
            raise Problem(503, errors.NOT_STORED, NOT_STORED_MESSAGE)
        answer = {"id": envelope.id, "status": "accepted", "timestamp": envelope.ts, **receipt.answer}
        return JSONResponse(answer)

    async def poll_messages(self, request: Request) -> Response:
        """What was said since a place in the history, and the place to ask from next."""
        board, _ = self._identify(request, request.query_params.get("space"), is_owner=True)
        limit = _limit_of(request)
        history = board.log
        since = request.query_params.get("since")
        wanted = history.start if since is None else Position.parse(since)
        entries = history.since(wanted) if wanted is not None else None
        is_complete = entries is not None
        if entries is None or wanted is None:
            wanted = history.start
            entries = history.since(wanted) or ()
        shown = entries[:limit]
        place = Position(history.epoch, shown[-1].sequence) if shown else wanted
        body = b'{"messages":[%s],"next":"%s","complete":%s,"more":%s}' % (
            b",".join(entry.data for entry in shown),
            str(place).encode(),
            b"true" if is_complete else b"false",
            b"true" if len(shown) < len(entries) else b"false",
        )
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    async def openapi(self, _request: Request) -> Response:
        """What this gateway answers to, for programs."""
        return JSONResponse(openapi_document(version=self._version))

    async def context(self, request: Request) -> Response:
        """The board."""
        board, _ = self._identify(request, request.path_params["space"])
        return Response(
            board.board().model_dump_json(by_alias=True, exclude_unset=True),
            media_type="application/json",
            headers={"cache-control": "no-store"},
        )

    async def events(self, request: Request) -> Response:
        """Everything that happens, as server-sent events."""
        board, _ = self._identify(request, request.path_params["space"])
        # A browser that reconnects asks for the same URL again, so what it saw last is newer than what the URL says.
        since = request.headers.get("last-event-id") or request.query_params.get("since") or None
        return StreamingResponse(
            event_stream(board, since, token=bearer_of(request.headers)),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def to_dashboard(self, _request: Request) -> Response:
        """Where a browser wants to go."""
        return RedirectResponse("/dashboard")

    async def dashboard(self, _request: Request) -> Response:
        """The dashboard's page."""
        return _file("index.html")

    async def dashboard_asset(self, request: Request) -> Response:
        """A script, style or picture of the dashboard."""
        name = request.path_params["asset"]
        if not _ASSET.fullmatch(name):
            raise HTTPException(404, f"the dashboard has no file '{name}'")
        return _file(name)

    def _identify(
        self, request: Request, space: str | None, *, is_owner: bool = False
    ) -> tuple[SpaceService, ParticipantId]:
        """Whose token came along, and the space that is meant. `is_owner` asks for the token of who is in the path.

        Raises `Problem`: 401 without a token, 403 for a wrong one or another's, 404 for a space that is not here.
        """
        token = bearer_of(request.headers)
        if token is None:
            raise Problem(401, errors.UNAUTHORIZED, "send a participant's token: Authorization: Bearer <token>")
        found = self._registry.find(space, token)
        board = found or self._registry.default
        participant = board.tokens.identify(token)
        only = _participant_of(request, board) if is_owner else None
        if participant is None or only not in (None, participant):
            owner = f" of '{only}'" if only is not None else ""
            raise Problem(403, errors.UNAUTHORIZED, f"this is not a token{owner} in this space")
        if found is None:
            raise Problem(404, errors.SPACE_NOT_FOUND, f"there is no space '{space}' here")
        return found, participant


def _participant_of(request: Request, board: SpaceService) -> str:
    """The participant in the path, by its id or its display name."""
    name: str = request.path_params["participant"]
    return board.space.resolve(name) or name


def _limit_of(request: Request) -> int:
    """How many messages are asked for. Raises `Problem`."""
    text = request.query_params.get("limit", str(DEFAULT_POLL))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MAX_POLL):
        raise Problem(400, errors.INVALID_REQUEST, f"limit: a whole number from 1 to {MAX_POLL}, not '{text}'")
    return int(text)


async def _body(request: Request, max_bytes: int) -> bytes:
    """A request's body, refused as soon as it is too long. Raises `Problem`."""
    chunks: list[bytes] = []
    left = max_bytes
    async for chunk in request.stream():
        left -= len(chunk)
        if left < 0:
            raise Problem(413, errors.TOO_LARGE, f"a body holds at most {max_bytes:,} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _file(name: str) -> Response:
    path = DASHBOARD / name
    if not path.is_file():
        raise HTTPException(404, f"the dashboard has no file '{name}'")
    return FileResponse(path, headers={"cache-control": "no-cache"})
