"""[pure] The address of a listener, in the form for clients on this machine."""

from dataclasses import dataclass
from typing import Final

_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared only


def in_url(host: str) -> str:
    """Return a host in the form of a URL, with an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a server listens. `name` is the host to connect to if the certificate has another name."""

    host: str
    port: int
    has_tls: bool = False
    name: str | None = None

    @property
    def connect_host(self) -> str:
        """The host to connect to; for a wildcard address this is the loopback address."""
        return self.name or _LOOPBACK.get(self.host, self.host)

    @property
    def http(self) -> str:
        """The HTTP address, without a trailing slash."""
        return f"http{'s' if self.has_tls else ''}://{in_url(self.connect_host)}:{self.port}"

    @property
    def ws(self) -> str:
        """The WebSocket address, without a trailing slash."""
        return "ws" + self.http.removeprefix("http")
