"""Connection settings of HTTP clients for other servers: trusted certificates and proxies.

Clients of the gateway use `mew_agent.certificates` instead.
"""

import ssl
from functools import cache
from typing import TypedDict
from urllib.parse import urlsplit

import httpx2

from mew_agent.gateway_address import is_loopback


class ClientOptions(TypedDict):
    """Arguments of an HTTP client."""

    verify: ssl.SSLContext
    trust_env: bool


def client_options(url: str) -> ClientOptions:
    """Return the connection settings for a server. A server on this machine needs no proxy.

    Plain HTTP on this machine needs no certificates.
    """
    parts = urlsplit(url)
    is_here = is_loopback(parts.hostname or "")
    needs_none = is_here and parts.scheme == "http"
    certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if needs_none else _trusted_certificates()
    return {"verify": certificates, "trust_env": not is_here}


@cache
def _trusted_certificates() -> ssl.SSLContext:
    """Return the certificates that clients trust by default. Loading them takes 20 ms, so clients share them."""
    return httpx2.create_ssl_context()
