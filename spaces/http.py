"""The gateway's HTTP side: health, participants, board, events, messages, and the dashboard's files.

Reads requests and writes answers. Who may do what is decided where it is decided for sockets; a message that
comes by HTTP takes the very same way.
"""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol import errors
from protocol.codec import decode_envelope
from protocol.errors import DecodeError
from protocol.ids import ParticipantId
from protocol.version import PROTOCOL
from spaces.events import event_stream
from spaces.switchboard import Switchboard

FEATURES = ("capabilities", "context", "validation", "http-io")

DASHBOARD = Path(__file__).parent / "dashboard"

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
    """The HTTP routes over one switchboard."""

    def __init__(self, switchboard: Switchboard, *, version: str) -> None:
        self._switchboard = switchboard
        self._version = version

    def routes(self) -> list[BaseRoute]:
        """All of them."""
        return [
            Route("/health", self.health),
            Route("/participants", self.participants),
            Route("/participants/{participant}/messages", self.post_message, methods=["POST"]),
            Route("/spaces/{space}/context", self.context),
            Route("/spaces/{space}/events", self.events),
            Route("/", self.to_dashboard),
            Route("/dashboard", self.dashboard),
            Route("/dashboard/{asset}", self.dashboard_asset),
        ]

    async def health(self, _request: Request) -> Response:
        """That the gateway lives."""
        board = self._switchboard
        return JSONResponse(
            {
                "status": "ok",
                "spaces": 1,
                "clients": board.connections,
                "uptime": board.uptime_seconds(),
                "features": list(FEATURES),
                "version": self._version,
                "protocol": PROTOCOL,
            }
        )

    async def participants(self, request: Request) -> Response:
        """Who belongs to the space and who is here."""
        if not self._switchboard.is_space(request.query_params.get("space")):
            return JSONResponse({"participants": []})
        views = self._switchboard.snapshot().participants
        listed = [
            {"id": view.id, "connected": view.connected, "capabilities": list(view.capabilities)} for view in views
        ]
        return JSONResponse({"participants": listed})

    async def post_message(self, request: Request) -> Response:
        """One envelope, as if its sender had sent it by a socket."""
        sender = self._identify(request, only=self._named(request))
        self._require_space(request.query_params.get("space"))
        limits = self._switchboard.config.limits
        try:
            body = await _body(request, limits.http_body_bytes)
            draft = decode_envelope(body, max_depth=limits.json_depth)
        except DecodeError as problem:
            raise Problem(400, problem.error, problem.detail, code=problem.code) from None
        receipt = self._switchboard.inject(sender, draft)
        if receipt.refused is not None:
            more = receipt.refused.model_dump(mode="json", exclude_none=True, exclude={"error", "message"})
            error, message = receipt.refused.error, receipt.refused.message or ""
            raise Problem(_STATUS.get(error, 400), error, message, **more, **receipt.answer)
        envelope = receipt.accepted
        assert envelope is not None
        answer = {"id": envelope.id, "status": "accepted", "timestamp": envelope.ts, **receipt.answer}
        return JSONResponse(answer)

    async def context(self, request: Request) -> Response:
        """The board."""
        self._identify(request)
        self._require_space(request.path_params["space"])
        board = self._switchboard.board()
        return Response(
            board.model_dump_json(by_alias=True, exclude_unset=True),
            media_type="application/json",
            headers={"cache-control": "no-store"},
        )

    async def events(self, request: Request) -> Response:
        """Everything that happens, as server-sent events."""
        reader = self._identify(request)
        self._require_space(request.path_params["space"])
        since = request.query_params.get("since") or request.headers.get("last-event-id") or None
        return StreamingResponse(
            event_stream(self._switchboard, since, reader=reader),
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

    def _named(self, request: Request) -> str:
        """The participant in the path, by its id or its display name."""
        name: str = request.path_params["participant"]
        return self._switchboard.space.resolve(name) or name

    def _identify(self, request: Request, *, only: str | None = None) -> ParticipantId:
        """Whose token came along. Raises `Problem` 401 without one and 403 for a wrong one or another's."""
        token = bearer_of(request.headers)
        if token is None:
            raise Problem(401, errors.UNAUTHORIZED, "send a participant's token: Authorization: Bearer <token>")
        participant = self._switchboard.tokens.identify(token)
        if participant is None or only not in (None, participant):
            owner = f" of '{only}'" if only is not None else ""
            raise Problem(403, errors.UNAUTHORIZED, f"this is not a token{owner} in this space")
        return participant

    def _require_space(self, name: str | None) -> None:
        if not self._switchboard.is_space(name):
            raise Problem(404, errors.SPACE_NOT_FOUND, f"there is no space '{name}' here")


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
