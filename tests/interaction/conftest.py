"""What tests of whole processes share."""

import signal
from collections.abc import Iterator

import pytest

from tests.support.ports import unused_ports


@pytest.fixture
def hangups_are_heard() -> Iterator[None]:
    """`nohup` has a run ignore them, and every program that a test starts would inherit that; a handler is not."""
    before = signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def unused_port() -> int:
    """A port that nothing listens on now."""
    return unused_ports()[0]
