"""Fixtures every test may use."""

import signal

import pytest
from hypothesis import settings

# A shell has its background jobs ignore interruptions, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, and no limit on their time: a busy machine must not turn a property into a failure.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """openai and uvicorn need asyncio; without this every test would run once per installed backend."""
    return "asyncio"
