"""Why a connection to a server could not be made or kept, in a few words.

Owns the wording for the exceptions of sockets, TLS and the HTTP transport, which come wrapped in each other. It knows
no model and no client library. The transport is imported at the first question.
"""

import ssl
from collections.abc import Iterator


def connection_cause(error: BaseException) -> str:
    """The innermost cause that there are words for."""
    import socket

    import httpx2

    for cause in causes(error):
        match cause:
            case ConnectionRefusedError():
                return "connection refused"
            case socket.gaierror():
                return "host name not found"
            case ssl.SSLError():
                why = getattr(cause, "verify_message", None) or getattr(cause, "reason", None) or "handshake failed"
                return f"TLS: {why}"
            case TimeoutError() | httpx2.TimeoutException():
                return "timed out"
            case httpx2.RemoteProtocolError() | httpx2.ReadError() | ConnectionResetError() | BrokenPipeError():
                return "the server broke the connection"
            case httpx2.UnsupportedProtocol() | httpx2.LocalProtocolError() | httpx2.ProxyError():
                return str(cause)
            case httpx2.DecodingError() | httpx2.TooManyRedirects():
                return str(cause)
            case OSError() if cause.strerror:
                return cause.strerror.lower()
    return "connection failed"


def causes(error: BaseException) -> Iterator[BaseException]:
    """All that it was raised from, the innermost first, and itself."""
    inner = error.__cause__ or error.__context__
    if inner is not None:
        yield from causes(inner)
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from causes(member)
    yield error
