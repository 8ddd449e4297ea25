"""Fixtures every test may use."""

import gc
import os
import signal
import sqlite3
import sys
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.support import warm_start

# Every program that a test starts would search all installed packages for plugins of pydantic.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

# No test connects to a server that an authority of the outside has to vouch for: clients trust one that signs nothing.
# Reading it takes a millisecond, and reading all authorities of the system takes twenty, for each client of a test. A
# client that ignores the environment (`trust_env=False`) verifies nothing for the same reason.
os.environ.setdefault("OUTSIDE_SSL_CERT_FILE", os.environ.get("SSL_CERT_FILE", ""))
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "no_authority.pem")

# A shell has its background jobs ignore interruptions, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

warm_start.install()


class WarningConnection(sqlite3.Connection):
    """Warns like Python 3.13 if it is not closed before it is deleted."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()

    def __del__(self) -> None:
        if not self.is_closed:
            warnings.warn(f"unclosed database in {self!r}", ResourceWarning, stacklevel=1, source=self)


_connect: Any = sqlite3.connect
if sys.version_info < (3, 13):
    warning: Any = lambda *args, **options: _connect(*args, **{"factory": WarningConnection, **options})  # noqa: E731
    sqlite3.connect = warning

# The same examples in every run, and no limit on their time: a busy machine must not turn a property into a failure.
settings.register_profile("short", deadline=None, derandomize=True, max_examples=20, stateful_step_count=30)
settings.register_profile("long", deadline=None, max_examples=2000)  # `make test-long`: other examples in every run
settings.load_profile("short")

# Hypothesis would take examples from the constants of all modules that are loaded: other examples if a file of tests
# runs alone than if all run, and half a second to read the modules in each worker.
providers._get_local_constants = lambda: providers._local_constants


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """openai and the listener need asyncio; without this every test would run once per installed backend."""
    return "asyncio"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of a part that is not in this copy of the tree; see `tests/house/test_removed_parts.py`."""
    homes = [Path(__file__).parents[1] / home / "parts" for home in ("mew_agent", "spaces/mew_spaces")]
    needed = {item: {name for mark in item.iter_markers("part") for name in mark.args} for item in items}
    if left_out := [
        item for item in items if not all(any((home / name).is_dir() for home in homes) for name in needed[item])
    ]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking at what is collected, which stays for the whole run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        gc.enable()
