"""Fixtures every test may use."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """openai and uvicorn need asyncio; without this every test would run once per installed backend."""
    return "asyncio"
