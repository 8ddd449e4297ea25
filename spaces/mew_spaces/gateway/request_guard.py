"""Refuses requests that a foreign web page makes a browser send.

Owns which `Host` and `Origin` headers are accepted. A page of another site may not use the gateway (`Origin`), and a
name that an attacker points at this machine is not the gateway's name (`Host`, against DNS rebinding). Clients that
are not browsers send no `Origin`. Does not know tokens.
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from mew_protocol import errors
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class RequestGuard:
    """ASGI middleware for HTTP and WebSocket requests."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        """`hosts` are accepted names besides `localhost` and IP addresses; `origins` accepted foreign origins."""
        self._app = app
        self._hosts = frozenset(one.lower() for one in (*hosts, "localhost"))
        self._origins = frozenset(one.lower().rstrip("/") for one in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        problem = self._problem(Headers(scope=scope)) if scope["type"] in ("http", "websocket") else None
        if problem is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            body = {"error": errors.UNAUTHORIZED, "message": problem}
            await JSONResponse(body, status_code=403)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": errors.CLOSE_UNAUTHORIZED, "reason": "host or origin"})

    def _problem(self, headers: Headers) -> str | None:
        host = headers.get("host", "").lower()
        if host and not self._is_own(host):  # only clients that are not browsers send none
            return "this host name is not the gateway's; add it to gateway.allowed_hosts in space.yaml"
        origin = headers.get("origin", "").lower()
        if not origin or origin in self._origins or (host and _host_of(origin) == _without_default_port(host)):
            return None
        return "pages of this origin may not use the gateway; add it to gateway.allowed_origins in space.yaml"

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._hosts or _is_address(name)


def _host_of(origin: str) -> str | None:
    """Return the host and port of an origin, without a default port; None for an opaque origin (`null`)."""
    try:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            return None
    except ValueError:
        return None
    return _without_default_port(parts.netloc)


def _without_default_port(host: str) -> str:
    return host.removesuffix(":80").removesuffix(":443")


def _is_address(name: str) -> bool:
    """Whether this is an IP address: DNS rebinding needs a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
