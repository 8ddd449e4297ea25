"""Checks the origin of each request: refuses foreign hosts and pages of other sites.

Checks the `Host` and `Origin` headers. Pages of other sites may not use a server (`Origin`), and a name that an
attacker points at this machine is not the server's (`Host`, against DNS rebinding). Clients other than browsers send no
`Origin`. The headers of a trusted proxy replace the connection's client and scheme (`proxies`). Does not know tokens.
"""

import ipaddress
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mew_listener.proxies import Forwarded, TrustedProxies
from mew_listener.proxies import Headers as RawHeaders

log = logging.getLogger("mew_listener")

_HOST = re.compile(r"(?:\[(?P<address>[^\]\s]+)\]|(?P<name>[^\s:/?#@\[\]\\]+))(?::[0-9]{0,5})?")
"""A host and an optional port, nothing else: the text before an `@` is a user, and others read it as the host."""

UNAUTHORIZED = "unauthorized"


DescribeError = Callable[[str, str], bytes]
"""Returns the body of an error response, as JSON, for a code and a message."""


def describe_error(code: str, message: str) -> bytes:
    """Return an error in the form for clients of model servers."""
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": code}}).encode()


@dataclass(frozen=True)
class Allowed:
    """Further host names of a server, and allowed origins of foreign pages; `*` is all."""

    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()


ONLY_OWN = Allowed()


@dataclass(frozen=True)
class Advice:
    """The advice about accepting another host or origin."""

    host: str = "start the server with --allow NAME"
    origin: str = "start the server with --allow URL"


class RequestGuard:
    """ASGI middleware for HTTP requests; WebSocket handshakes are examined by `examine`."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str],
        origins: Iterable[str],
        proxies: TrustedProxies | None = None,
        advice: Advice | None = None,
        describe_error: DescribeError = describe_error,
    ) -> None:
        """`hosts` are names accepted in addition to `localhost` and IP addresses; `origins` are accepted foreign
        origins.

        The origin `*` accepts all.
        """
        self._app = app
        self._advice = advice or Advice()
        self._describe_error = describe_error
        self._proxies = proxies or TrustedProxies()
        self._hosts = frozenset(one.lower() for one in (*hosts, "localhost"))
        self._origins = frozenset(one.lower().rstrip("/") for one in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            client, port = scope.get("client") or ("", 0)
            problem, forwarded = self.examine(client, scope["headers"])
            if problem is not None:
                body = self._describe_error(UNAUTHORIZED, problem)
                await Response(body, status_code=403, media_type="application/json")(scope, receive, send)
                return
            if forwarded is not None:
                scope = {
                    **scope,
                    "client": (forwarded.client, port),
                    "scheme": forwarded.scheme or scope["scheme"],
                }
        await self._app(scope, receive, send)

    def examine(self, client: str, raw_headers: RawHeaders) -> tuple[str | None, Forwarded | None]:
        """Return the reason to refuse a request (or None), and its origin according to a trusted proxy. `client` is its
        IP.
        """
        headers = Headers(raw=list(raw_headers))
        hosts, origin = [headers.get("host", "")], headers.get("origin", "")
        forwarded = self._proxies.read(client, raw_headers)
        if forwarded is not None:
            # Check the proxy's own Host header, too: a page under another name cannot set it.
            hosts.append(forwarded.host or "")
            client = forwarded.client
        problem = self._problem([one.lower() for one in hosts if one], origin)
        if problem is not None:
            log.warning("request refused: from %s, host %r, origin %r", client, hosts[0], origin)
        return problem, forwarded

    def _problem(self, hosts: Sequence[str], origin: str) -> str | None:
        """Return why a request with these headers is refused. Clients other than browsers may send neither."""
        if not all(self._is_own(host) for host in hosts):
            return f"this host name is not the server's; {self._advice.host}"
        origin = origin.lower()
        own = [_without_default_port(host) for host in hosts]
        if not origin or origin in self._origins or "*" in self._origins or _host_of(origin) in own:
            return None
        return f"pages of this origin may not use the server; {self._advice.origin}"

    def _is_own(self, host: str) -> bool:
        written = _HOST.fullmatch(host)
        if written is None:
            return False
        name = written["address"] or written["name"]
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)  # any address is accepted, because DNS rebinding needs a name
        except ValueError:
            return False
        return True


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
