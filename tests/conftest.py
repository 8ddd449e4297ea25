"""Fixtures every test may use."""

import pytest
from hypothesis import settings

# The same examples in every run, and no limit on their time: a busy machine must not turn a property into a failure.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """openai and uvicorn need asyncio; without this every test would run once per installed backend."""
    return "asyncio"
