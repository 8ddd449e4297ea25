"""A program that is asked to terminate says goodbye first."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, anyio
from mew_agent.cli.signals import run_until_terminated

async def main():
    try:
        if {asked}:
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep(30)
    finally:
        print("goodbye")

run_until_terminated(main)
print("after")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM ends a process at once there")
@pytest.mark.parametrize("asked", [True, False])
def test_it_ends_in_order_with_and_without_being_asked(asked: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(asked=asked)], capture_output=True, text=True, timeout=25, check=True
    )
    assert ended.stdout == "goodbye\nafter\n"
