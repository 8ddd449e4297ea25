"""How long a test waits for what must happen, and waiting for a condition."""

import time
from collections.abc import Callable
from inspect import isawaitable

import anyio

PATIENCE_SECONDS = 120.0
"""A bound against hanging only: so generous that a busy machine never reaches it."""


async def until(condition: Callable[[], object], *, every_seconds: float = 0.005) -> None:
    """Wait for a condition, perhaps an async one, that no event announces, such as the state of another process."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while not (await found if isawaitable(found := condition()) else found):
            await anyio.sleep(every_seconds)


def until_in_thread(condition: Callable[[], object]) -> None:
    """`until` for tests without an event loop."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {PATIENCE_SECONDS:.0f} seconds"
        time.sleep(0.005)
