"""A program returns what it has freed to the system."""

import subprocess
import sys

import pytest

from tests.support.waiting import PATIENCE_SECONDS

PROGRAM = f"""
import asyncio
from pathlib import Path
from mew_listener.freed_memory import return_freed_memory

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

async def main():
    pairs = [(b"a" * 20_000, b"b" * 700) for _ in range(4_000)]
    kept = [small for _, small in pairs]  # between the large ones, so that these are holes
    del pairs
    full = resident_bytes()
    return_freed_memory(asyncio.get_running_loop(), 0.01)
    async with asyncio.timeout({PATIENCE_SECONDS}):
        while resident_bytes() > full - 50 * 2**20:
            await asyncio.sleep(0.01)
    assert len(kept) == 4_000

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_between_blocks_in_use_is_returned() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
