"""The wording of a failed connection, from whichever library the error comes."""

import itertools
import socket
import ssl

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Close

from mew_agent.failed_connections import causes, connection_cause, gateway_cause
from tests.support.sdk_transport import transport


def raised_from(*chain: BaseException) -> BaseException:
    """The last exception, each raised from the one before."""
    for inner, outer in itertools.pairwise(chain):
        outer.__cause__ = inner
    return chain[-1]


@pytest.mark.parametrize(
    ("error", "wording"),
    [
        (ConnectionRefusedError(111, "x"), "connection refused"),
        (socket.gaierror(-2, "x"), "host name not found"),
        (ssl.SSLError("x"), "TLS: handshake failed"),
        (TimeoutError(), "no answer in time"),
        (transport.LocalProtocolError("Illegal header value b'Bearer s3cret'"), "invalid header or URL"),
        (ConnectionResetError(104, "x"), "the server closed the connection"),
        (transport.ProxyError("proxy says no"), "proxy says no"),
        (OSError(101, "Network is unreachable"), "network is unreachable"),
        (ValueError("x"), "connection failed"),
    ],
)
def test_each_cause_has_its_wording_at_any_depth(error: BaseException, wording: str) -> None:
    assert connection_cause(error) == wording
    assert connection_cause(raised_from(error, RuntimeError("b"), RuntimeError("a"))) == wording


def test_the_innermost_cause_with_a_wording_wins() -> None:
    chain = raised_from(ConnectionRefusedError(111, "x"), transport.ConnectError("all failed"), OSError(5, "Outer"))
    assert connection_cause(chain) == "connection refused"


def test_members_of_an_exception_group_are_causes() -> None:
    group = ExceptionGroup("both", [ValueError("a"), ConnectionRefusedError(111, "x")])
    assert [type(cause) for cause in causes(group)] == [ValueError, ConnectionRefusedError, ExceptionGroup]
    assert connection_cause(group) == "connection refused"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConnectionClosedError(Close(4001, "too slow"), None), "the gateway closed the connection: too slow"),
        (ConnectionClosedError(Close(1012, ""), None), "the gateway closed the connection: 1012"),
        (ConnectionClosedError(None, Close(1011, "keepalive ping timeout")), "no answer to a ping"),
        (ConnectionClosedError(None, None), "the connection broke"),
    ],
)
def test_the_end_of_a_websocket_has_a_plain_cause(error: Exception, cause: str) -> None:
    assert gateway_cause(error) == cause
