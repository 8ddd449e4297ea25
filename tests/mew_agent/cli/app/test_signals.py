"""Ending on a signal: commands clean up."""

import subprocess
import sys

import pytest

from tests.support.waiting import PATIENCE_SECONDS

COMMAND = """
import os, signal
from mew_agent.cli.app.signals import interrupt_on_termination

signal.signal(signal.SIGINT, {ctrl_c})
signal.signal(signal.SIGHUP, {hangup})
try:
    with interrupt_on_termination():
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            print("on")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            print("undone")
except KeyboardInterrupt:
    print("interrupted")
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
assert signal.getsignal(signal.SIGHUP) is {hangup}
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals there")
@pytest.mark.parametrize("ctrl_c", ["signal.default_int_handler", "signal.SIG_IGN"])
@pytest.mark.parametrize("hangup", ["signal.SIG_DFL", "signal.SIG_IGN"])
def test_a_terminated_command_runs_its_cleanup(ctrl_c: str, hangup: str) -> None:
    program = COMMAND.format(ctrl_c=ctrl_c, hangup=hangup)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert ended.stdout == "undone\ninterrupted\n"
