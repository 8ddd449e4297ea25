"""What is confirmed arrives once and in order while links, disk and gateway process fail; `make faults` for longer."""

import sys
from pathlib import Path

import pytest

from tests.faults.harness import FaultPlan, run_faults

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes exist on Linux only")


async def test_a_space_keeps_its_promises_while_everything_breaks(tmp_path: Path) -> None:
    # It ends after a number of faults: how many fit into some seconds depends on the machine.
    plan = FaultPlan(
        seed=7,
        members=4,
        agents=1,
        cuts=10,
        kills=2,
        agent_kills=2,
        process_pause_seconds=0.7,
        program_pause_seconds=1.0,
    )
    report = await run_faults(plan, tmp_path)
    assert report.outcomes["confirmed"] > 0
    assert report.answers > 0
    assert report.faults.total() >= 14
