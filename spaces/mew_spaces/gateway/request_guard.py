"""Looks at a request before anything else does: who sent it, and whether a page of another site made a browser send it.

Owns which `Host` and `Origin` headers are accepted. A page of another site may not use the gateway (`Origin`), and a
name that an attacker points at this machine is not the gateway's name (`Host`, against DNS rebinding). Clients that
are not browsers send no `Origin`. What a trusted proxy forwards replaces the client and scheme of the connection
(`proxies`). Does not know tokens.
"""

import ipaddress
import logging
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from mew_protocol import errors
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mew_spaces.gateway.proxies import Forwarded, TrustedProxies

log = logging.getLogger("mew_spaces")


class RequestGuard:
    """ASGI middleware for HTTP and WebSocket requests."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str],
        origins: Iterable[str],
        proxies: TrustedProxies,
    ) -> None:
        """`hosts` are accepted names besides `localhost` and IP addresses; `origins` accepted foreign origins."""
        self._app = app
        self._proxies = proxies
        self._hosts = frozenset(one.lower() for one in (*hosts, "localhost"))
        self._origins = frozenset(one.lower().rstrip("/") for one in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        problem = None
        if scope["type"] in ("http", "websocket"):
            headers, (client, port) = Headers(scope=scope), scope.get("client") or ("", 0)
            hosts, origin = [headers.get("host", "")], headers.get("origin", "")
            forwarded = self._proxies.read(client, scope["headers"])
            if forwarded is not None:
                # The proxy's own Host header is checked, too: a page of another name cannot set it.
                hosts.append(forwarded.host or "")
                client, scope = forwarded.client, _as_forwarded(scope, forwarded, port)
            problem = self._problem([one.lower() for one in hosts if one], origin)
            if problem is not None:
                log.warning("request refused: from %s, host %r, origin %r", client, hosts[0], origin)
        if problem is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            body = {"error": errors.UNAUTHORIZED, "message": problem}
            await JSONResponse(body, status_code=403)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": errors.CLOSE_UNAUTHORIZED, "reason": "host or origin"})

    def _problem(self, hosts: Sequence[str], origin: str) -> str | None:
        """Return why a request for these hosts is refused. Clients that are not browsers may name neither."""
        if not all(self._is_own(host) for host in hosts):
            return "this host name is not the gateway's; add it to gateway.allowed_hosts in space.yaml"
        origin = origin.lower()
        own = [_without_default_port(host) for host in hosts]
        if not origin or origin in self._origins or _host_of(origin) in own:
            return None
        return "pages of this origin may not use the gateway; add it to gateway.allowed_origins in space.yaml"

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name not in self._hosts:
                ipaddress.ip_address(name)  # any address is accepted: DNS rebinding needs a name
        except ValueError:
            return False
        return True


def _as_forwarded(scope: Scope, forwarded: Forwarded, port: int) -> Scope:
    """Return the request as its client sent it to the proxy."""
    scheme = forwarded.scheme or scope["scheme"]
    if scope["type"] == "websocket":
        scheme = {"http": "ws", "https": "wss"}.get(scheme, scheme)
    return {**scope, "client": (forwarded.client, port), "scheme": scheme}


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
