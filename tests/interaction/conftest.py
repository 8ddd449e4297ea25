"""What tests of whole processes share."""

import socket

import pytest


@pytest.fixture
def unused_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
