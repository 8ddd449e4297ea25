"""No input stops or slows the gateway for others; `python -m tests.faults --fuzz` for longer."""

import sys
from pathlib import Path

import pytest

from tests.faults.fuzz import run_fuzz

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes exist on Linux only")


async def test_a_gateway_serves_on_under_invalid_input(tmp_path: Path) -> None:
    report = await run_fuzz(11, tmp_path, inputs=30_000, seconds=5)
    assert report.inputs > 1_000
    assert report.witnessed > 10
    assert report.reads > 10
    assert report.posts > 0
