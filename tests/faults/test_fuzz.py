"""No input stops or slows a server for others; `python -m tests.faults --fuzz` for longer."""

import sys
from pathlib import Path

import pytest

from tests.faults.fuzz import FuzzRun, run_fuzz
from tests.faults.fuzz_backplane import fuzz_backplane
from tests.faults.witness import TooLate
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes exist on Linux only")


async def test_a_gateway_serves_on_under_invalid_input(tmp_path: Path) -> None:
    run = FuzzRun(11, tmp_path, inputs=1_500, seconds=PATIENCE_SECONDS, read_seconds=PATIENCE_SECONDS)
    report = await run.run()
    assert report.arrived.total() > 500
    assert report.witnessed > 10
    assert report.reads["gateway"] > 10
    assert report.posts > 0
    with pytest.raises(TooLate, match=r"gateway: .* took \d+\.\d s"):
        run.refuse_slow_reads(0.0)


async def test_every_server_serves_on_under_invalid_input(tmp_path: Path) -> None:
    report = await run_fuzz(
        12, tmp_path, inputs=300, seconds=PATIENCE_SECONDS, whole=True, read_seconds=PATIENCE_SECONDS
    )
    servers = {"gateway", "model", "meter", "serve", "a2a", "mcp", "acp"}
    assert {name for name in servers if report.arrived[name] and report.reads[name]} == servers
    assert report.proposals > 0
    assert report.tool_pages > 0
    assert report.reads["coder"] > 0, "receipts"


async def test_a_gateway_serves_on_under_malformed_messages_of_nats(tmp_path: Path) -> None:
    report = await fuzz_backplane(13, tmp_path, seconds=3)
    assert report.witnessed > 3
    assert {"batches", "frames"} <= report.written.keys()
