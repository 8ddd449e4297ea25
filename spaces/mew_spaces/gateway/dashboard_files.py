"""The dashboard's files over HTTP, and headers that protect the browser.

Selects the served files, and sets their security policy. Does not know spaces: the page reads them through the HTTP
API, with the user's token.
"""

from pathlib import Path

from mew_board.shared_words import WORDS_FILE
from mew_board.verbs import VERBS_FILE
from mew_board.visible import LOOK_ALIKES_FILE
from mew_settings.roles import ROLES_FILE
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DASHBOARD = Path(__file__).parents[1] / "dashboard"

_SECURITY_HEADERS = (
    (
        b"content-security-policy",
        (
            b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; "
            b"require-trusted-types-for 'script'; trusted-types 'none'"
        ),  # no text of a participant can become markup
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class SecurityHeaders:
    """Adds security headers to every HTTP response: other sites can neither frame the dashboard nor run scripts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; add the headers to the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_SECURITY_HEADERS]
            await send(message)

        await self._app(scope, receive, send_secured)


def dashboard_routes() -> list[BaseRoute]:
    """Return the routes of the dashboard; `/` redirects to it."""
    return [
        Route("/", lambda _: RedirectResponse("/dashboard")),
        Route("/dashboard", _serve),
        Route("/dashboard/{file:path}", _serve),
    ]


_FILES = StaticFiles(directory=DASHBOARD)
_SHARED = {file.name: file for file in (WORDS_FILE, ROLES_FILE, VERBS_FILE, LOOK_ALIKES_FILE)}
"""Files that Python reads, too."""


async def _serve(request: Request) -> Response:
    name = request.path_params.get("file", "index.html")
    try:
        if name in _SHARED:
            return FileResponse(_SHARED[name], headers={"cache-control": "no-cache"})
        response = await _FILES.get_response(name, request.scope)
    except (HTTPException, ValueError):  # ValueError: a null byte, in older versions of Starlette
        raise HTTPException(404, f"the dashboard has no file '{name}'") from None
    response.headers["cache-control"] = "no-cache"  # the browser asks each time, and usually gets a 304
    return response
