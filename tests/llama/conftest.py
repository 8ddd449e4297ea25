"""llama.cpp's own server with a tiny model, for tests that are run only when this folder is named.

`make test-llama` builds the server once and runs them; the main suite does not know them.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mew_agent.model.openai_client import OpenAIModel
from tests.llama import tiny_model
from tests.llama.build_server import server_path
from tests.llama.server import LlamaServer, running_server

HERE = Path(__file__).resolve().parent

Serving = Callable[..., AbstractContextManager[LlamaServer]]
"""`serving(window_tokens=4096, slots=1, extra=("--context-shift",))` starts another server."""


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave this folder out unless an argument names it: it needs a program that takes minutes to build."""
    named = (Path(config.invocation_params.dir, arg.partition("::")[0]).resolve() for arg in config.args)
    return None if any(HERE in (path, *path.parents) for path in named) else True


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model.gguf` and the same vocabulary as `tokenizer.json`."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model.write(folder, tiny_model.shipped_texts())
    return folder


@pytest.fixture(scope="session")
def serving(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Serving:
    program = server_path()
    if not program.is_file():
        pytest.exit(f"there is no {program}; `make test-llama` builds it once", returncode=2)

    @contextmanager
    def start(**options: Any) -> Iterator[LlamaServer]:
        log = tmp_path_factory.mktemp("server") / "log"
        with running_server(program, files / "model.gguf", log, **options) as server:
            yield server

    return start


@pytest.fixture(scope="session")
def server(serving: Serving) -> Iterator[LlamaServer]:
    """One slot of 4,096 tokens."""
    with serving() as running:
        yield running


@pytest.fixture
async def model(server: LlamaServer) -> AsyncIterator[OpenAIModel]:
    made = OpenAIModel("tiny", server.base_url, max_retries=0)
    yield made
    await made.aclose()
