"""pytest fixtures for programs that take part in a space: a gateway, a rehearsal model, an environment, a participant.

Runs the space of a test. The gateway and the model run in a thread, so tests may be plain functions, run under AnyIO or
another plugin, or start programs. Only this module imports pytest; a project names it in its `conftest.py`:

    pytest_plugins = ["mew_agent.parts.testing"]
"""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mew_settings.plugins import load_only

from mew_agent.extras import require_extra
from mew_agent.participant.participant import Participant

require_extra("space", "`mew_agent.parts.testing`")

from mew_agent.cli.programs.start_gateway import RunningGateway, serve_in_process  # noqa: E402

TEST_MODELS = "mew_agent.test_models"
"""The table of model servers for tests: functions that return an async context manager of a `ModelServer`."""

SPACE = """
space: {id: test, default_participant: ada}
participants:
  ada: {capabilities: [{kind: "*"}]}
  agent: {role: agent, capabilities: [{kind: mcp/request}, {kind: mcp/response}]}
  tools: {role: tool}
"""
"""`ada` may send everything; `agent` and `tools` have the capabilities of agents and of programs with tools."""


class ModelServer(Protocol):
    """A model server of a test, such as a `RehearsalServer`."""

    base_url: str
    requests: list[Any]
    """The received requests, each with its true counts of tokens."""

    @property
    def options(self) -> Any:
        """Its current options; `model` is the model's name."""

    def change(self, **changes: Any) -> None:
        """Replace options by name, from the next request on."""


@pytest.fixture(scope="session")
def mew_thread() -> Iterator[BlockingPortal]:
    """Provide the event loop, in a thread, that gateways and models run in."""
    with start_blocking_portal("asyncio") as portal:
        yield portal


@pytest.fixture
def mew_space() -> str | Path:
    """Provide the space of a test: the text or path of a space.yaml. Override this fixture to test with your own."""
    return SPACE


@pytest.fixture
def mew_gateway(mew_space: str | Path, mew_thread: BlockingPortal) -> Iterator[RunningGateway]:
    """Run a gateway with the space of the test on a free port of this machine. It writes no files and starts no
    programs.

    Clients need `ws_url` and `token_of(participant)`. `board()` returns the board, as in `mew status`.
    """
    with mew_thread.wrap_async_context_manager(serve_in_process(mew_space)) as gateway:
        yield gateway


@pytest.fixture
def mew_model(mew_thread: BlockingPortal) -> Iterator[ModelServer]:
    """Run the rehearsal model as an OpenAI-compatible server.

    `requests` lists the received requests; `change(...)` sets options of `RehearsalOptions` from the next request on.
    """
    serve = load_only(TEST_MODELS)
    assert serve is not None, f"no installed package adds to '{TEST_MODELS}'"
    with mew_thread.wrap_async_context_manager(serve()) as server:
        yield server


@pytest.fixture
def mew_environment(mew_gateway: RunningGateway, mew_model: ModelServer) -> Callable[[str], dict[str, str]]:
    """`mew_environment(participant)`: the environment variables of a program that joins as this participant.

    They are the variables of `mew up`, with the rehearsal model as the provider. Pass them to `from_environment`.
    """

    def variables(participant: str) -> dict[str, str]:
        return {
            "MEW_GATEWAY": mew_gateway.ws_url,
            "MEW_SPACE": mew_gateway.config.space.id,
            "MEW_PARTICIPANT_ID": participant,
            "MEW_TOKEN": mew_gateway.token_of(participant),
            "OPENAI_API_KEY": "rehearsal",
            "OPENAI_BASE_URL": mew_model.base_url,
            "OPENAI_MODEL": mew_model.options.model,
        }

    return variables


@pytest.fixture
async def mew_participant(
    mew_gateway: RunningGateway, mew_environment: Callable[[str], dict[str, str]]
) -> AsyncIterator[Participant]:
    """Join as the space's default participant, else its first one, in tests under AnyIO's plugin."""
    config = mew_gateway.config
    name = config.space.default_participant or next(iter(config.participants))
    async with Participant.from_environment(mew_environment(name)) as me:
        yield me
