"""Read receipts equal the prompts while links, processes and contexts break; `make faults-receipts` for longer."""

import sys
from pathlib import Path

import pytest

from tests.faults.receipts import ReceiptPlan, run_receipts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes exist on Linux only")


async def test_read_receipts_are_true_while_everything_breaks(tmp_path: Path) -> None:
    report = await run_receipts(ReceiptPlan(seed=11, chats=40), tmp_path)
    assert report.chats["answered"] > 0
    assert report.witness.states["answered whole"] > 0
    assert report.compactions.total() > 0
    assert report.results > 0
    assert all(report.events.values())
