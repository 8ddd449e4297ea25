"""The certificates that clients of models, metered providers and MCP servers trust.

The gateway has settings of its own for this: `mew_agent.gateway_address`.
"""

import ssl
from functools import cache
from urllib.parse import urlsplit

import httpx2

from mew_agent.gateway_address import is_loopback


def certificates_for(url: str) -> ssl.SSLContext:
    """Return the certificates to trust: none for plain HTTP on this machine, where no connection needs any."""
    parts = urlsplit(url)
    if parts.scheme == "http" and is_loopback(parts.hostname or ""):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return _trusted_certificates()


@cache
def _trusted_certificates() -> ssl.SSLContext:
    """Return the certificates that clients trust by default. Loading them takes 20 ms, so clients share them."""
    return httpx2.create_ssl_context()
