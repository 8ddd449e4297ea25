"""What is confirmed arrives once and in order while links, disk and gateway process fail; `make faults` for longer."""

import sys
from pathlib import Path

import pytest

from tests.faults.harness import FaultPlan, run_faults

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes exist on Linux only")


@pytest.mark.parametrize("durability", ["flushed", "synced"])
async def test_a_space_keeps_its_promises_while_everything_breaks(durability: str, tmp_path: Path) -> None:
    plan = FaultPlan(seed=7, members=4, seconds=5, durability=durability, process_pause_seconds=0.7)
    report = await run_faults(plan, tmp_path)
    assert report.outcomes["confirmed"] > 10
    assert report.faults.total() > 10
