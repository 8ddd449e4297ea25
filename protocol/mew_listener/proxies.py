"""[pure] Find the client of a request that a reverse proxy forwards.

Knows the trusted proxies, and reads `X-Forwarded-For`, `-Proto`, `-Host` and `Forwarded`. Headers from other addresses
have no effect, because any client can send them.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Headers = Iterable[tuple[bytes, bytes]]
"""Names in lower case, and values, as ASGI has them."""

_PROXY_HEADERS = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded")


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The headers of a trusted proxy for a request. `scheme` and `host` are None if they are missing."""

    client: str
    scheme: str | None = None
    host: str | None = None


class TrustedProxies:
    """The proxies that are trusted to name clients."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """`networks` are addresses or CIDR networks. Raises ValueError."""
        self._networks = tuple(ipaddress.ip_network(one) for one in networks)

    def trusts(self, address: str) -> bool:
        """Return True if this is the address of a trusted proxy."""
        parsed = _parsed(address) if self._networks else None
        return parsed is not None and any(parsed in network for network in self._networks)

    def read(self, peer: str, headers: Headers) -> Forwarded | None:
        """Return the origin of a request of `peer` by its headers; None if `peer` is not trusted or names none.

        The client is the last address that is not a trusted proxy, because the client may have written earlier ones. A
        proxy sets only one of the two forms and passes the client's other one on, so if they name two clients, neither
        counts and the client is `peer`.
        """
        if not self.trusts(peer):
            return None
        said = _proxy_values(headers)
        addresses, schemes, hosts, forwarded = said
        if not any(said):
            return None
        elements = [_pairs(one) for one in forwarded]
        newest = elements[-1] if elements else {}
        scheme = (schemes[-1] if schemes else newest.get("proto", "")).lower()
        return Forwarded(
            client=self._client_in_both(addresses, elements) or peer,
            scheme=scheme if scheme in ("http", "https") else None,
            host=hosts[-1] if hosts else newest.get("host"),
        )

    def _client_in_both(self, addresses: Sequence[str], elements: Iterable[Mapping[str, str]]) -> str | None:
        """Return the client named by both forms or by the only one present; else None."""
        written = [one["for"].strip('"') for one in elements if "for" in one]
        clients = {self._client(addresses), self._client(written)} - {None}
        return clients.pop() if len(clients) == 1 else None

    def _client(self, addresses: Sequence[str]) -> str | None:
        """Return the last address that is not a proxy's; None without a usable address."""
        client = None
        for written in reversed(addresses):
            parsed = _parsed(_without_port(written))
            if parsed is None:  # a hidden or unknown client: use its proxy, the nearest known address
                break
            client = str(parsed)
            if not self.trusts(client):
                break
        return client


def _proxy_values(headers: Headers) -> Sequence[list[str]]:
    """Return the values of each header of a proxy, in the order of `_PROXY_HEADERS`."""
    said: dict[bytes, list[str]] = {name: [] for name in _PROXY_HEADERS}
    for name, value in headers:
        if name in _PROXY_HEADERS:
            said[name] += (one.strip() for one in value.decode("latin-1").split(",") if one.strip())
    return tuple(said.values())


def _parsed(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, _, port = text.rpartition(":")
    return host if port.isdigit() and host.count(":") == 0 and host else text


def _pairs(element: str) -> dict[str, str]:
    """Return the parameters of one element of `Forwarded`, such as `for=192.0.2.1;proto=https`."""
    split = (pair.partition("=") for pair in element.split(";"))
    return {name.strip().lower(): value.strip() for name, _, value in split}
