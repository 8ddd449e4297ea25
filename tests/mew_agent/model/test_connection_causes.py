"""What stands in an exception's chain is told in a few words, the innermost first."""

import itertools
import socket
import ssl

import httpx2
import pytest

from mew_agent.model.connection_causes import causes, connection_cause


def raised_from(*chain: BaseException) -> BaseException:
    """The last of them, each raised from the one before."""
    for inner, outer in itertools.pairwise(chain):
        outer.__cause__ = inner
    return chain[-1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "x"), "connection refused"),
        (socket.gaierror(-2, "x"), "host name not found"),
        (ssl.SSLError("x"), "TLS: handshake failed"),
        (TimeoutError(), "timed out"),
        (ConnectionResetError(104, "x"), "the server broke the connection"),
        (httpx2.ProxyError("proxy says no"), "proxy says no"),
        (OSError(101, "Network is unreachable"), "network is unreachable"),
        (ValueError("x"), "connection failed"),
    ],
)
def test_each_cause_has_its_words_however_deep_it_is(error: BaseException, words: str) -> None:
    assert connection_cause(error) == words
    assert connection_cause(raised_from(error, RuntimeError("b"), RuntimeError("a"))) == words


def test_the_innermost_cause_that_has_words_is_told() -> None:
    chain = raised_from(ConnectionRefusedError(111, "x"), httpx2.ConnectError("all failed"), OSError(5, "Outer"))
    assert connection_cause(chain) == "connection refused"


def test_the_members_of_a_group_are_causes_too() -> None:
    group = ExceptionGroup("both", [ValueError("a"), ConnectionRefusedError(111, "x")])
    assert [type(cause) for cause in causes(group)] == [ValueError, ConnectionRefusedError, ExceptionGroup]
    assert connection_cause(group) == "connection refused"
