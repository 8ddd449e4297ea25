"""[pure] Why a connection failed, in a few words, for the clients of models, gateways and tool servers."""

import contextlib
import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Final

# Names rather than classes: httpx and httpx2 define the same exceptions, and which of the two is installed depends on
# the version of the openai package. None: the exception's own message is the best wording.
# That of `LocalProtocolError` may hold a key.
_CLOSED: Final = "the server closed the connection"
_WORDINGS: Final[Mapping[str, str | None]] = {
    "ConnectionRefusedError": "connection refused",
    "ConnectionResetError": _CLOSED,
    "BrokenPipeError": _CLOSED,
    "RemoteProtocolError": _CLOSED,
    "ReadError": _CLOSED,
    "TimeoutError": "no answer in time",
    "TimeoutException": "no answer in time",
    "gaierror": "host name not found",
    "UnsupportedProtocol": None,
    "LocalProtocolError": "invalid header or URL",
    "ProxyError": None,
    "DecodingError": None,
    "TooManyRedirects": None,
}


def connection_cause(error: BaseException, otherwise: str = "connection failed") -> str:
    """Return the description of the innermost known cause, else `otherwise`."""
    wordings = (_wording(cause) for cause in causes(error))
    return next(filter(None, wordings), otherwise)


def gateway_cause(error: Exception) -> str:
    """Return why a connection to a gateway failed or ended; for a refused handshake, the gateway's answer."""
    body = getattr(getattr(error, "response", None), "body", None)
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return str(json.loads(body or b"")["message"])
    if closed := getattr(error, "rcvd", None):  # the close frame of a WebSocket
        return f"the gateway closed the connection: {closed.reason or closed.code}"
    if "keepalive ping timeout" in str(error):
        return "no answer to a ping"
    if "no close frame" in str(error):
        return "the connection broke"
    return connection_cause(error, str(error) or type(error).__name__)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the causes of `error`, innermost first and `error` last, including members of groups."""
    inner = error.__cause__ or error.__context__
    if inner is not None:
        yield from causes(inner)
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from causes(member)
    yield error


def _wording(cause: BaseException) -> str | None:
    for kind in type(cause).__mro__:
        if kind.__name__ in _WORDINGS:
            return _WORDINGS[kind.__name__] or str(cause)
    match cause:
        case ssl.SSLError():
            reason = getattr(cause, "verify_message", None) or getattr(cause, "reason", None) or "handshake failed"
            return f"TLS: {reason}"
        case OSError() if "Connect call failed" in str(cause):  # asyncio's error for several addresses
            return "connection refused"
        case OSError() if cause.strerror:
            return cause.strerror.lower()
    return None
