"""The URLs of gateways in either scheme.

A space may have several gateways, so every gateway setting accepts a list of URLs separated by commas.

Reads URLs and recognises loopback hosts. Opens no connection.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from mew_agent.errors import ConfigError


def http_url(gateways: str, where: str = "--gateway") -> str:
    """Return the http:// or https:// URL of each gateway; both schemes use one port. Raises `ConfigError`."""
    return ",".join(_http_url(one.strip(), where) for one in gateways.split(","))


def websocket_url(gateways: str, where: str = "gateway") -> str:
    """Return the ws:// or wss:// URL of each gateway. Raises `ConfigError`."""
    return ",".join("ws" + one.removeprefix("http") for one in addresses(http_url(gateways, where)))


def addresses(gateways: str) -> tuple[str, ...]:
    """Split a result of `http_url` or `websocket_url` into its URLs."""
    return tuple(gateways.split(","))


def is_loopback(host: str) -> bool:
    """Return True if a host is a loopback name or address, which other machines and proxies cannot reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _http_url(gateway: str, where: str) -> str:
    scheme, mark, rest = gateway.partition("://")
    swapped = {"ws": "http", "wss": "https", "http": "http", "https": "https"}.get(scheme.lower())
    try:
        parts = urlsplit(f"http://{rest}")
        usable = bool(mark and parts.hostname and parts.port != 0 and not parts.fragment)
    except ValueError:
        usable = False
    if swapped is None or not usable:
        raise ConfigError(where, f"'{gateway}' is not a gateway URL", "a URL like ws://127.0.0.1:8080")
    return f"{swapped}://{rest}".rstrip("/")
