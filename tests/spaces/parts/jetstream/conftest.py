"""A real NATS server for the tests of this folder, one for each process of pytest."""

import uuid
from collections.abc import Iterator

import pytest
from mew_spaces.parts.jetstream.nats_server import NatsServer


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The server; each test uses a space of its own."""
    server = NatsServer(tmp_path_factory.mktemp("nats"), settings="max_payload: 65536")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def space() -> str:
    """The id of a space that no other test uses."""
    return f"space {uuid.uuid4()}"
