"""A broken promise and a missed bound of waiting time end a run with different exit codes."""

import sys
from pathlib import Path

import pytest

from tests.faults.__main__ import LATE, judge
from tests.faults.fuzz import run_fuzz
from tests.faults.witness import PromiseBroken, TooLate
from tests.support.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("broken", "code"), [(None, 0), (TooLate("slow"), LATE), (PromiseBroken("lost"), 1), (AssertionError("wrong"), 1)]
)
def test_only_a_missed_bound_has_the_code_of_late_runs(broken: AssertionError | None, code: int) -> None:
    async def run(_: Path) -> str:
        if broken is not None:
            raise broken
        return "held"

    assert judge(run) == code


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes exist on Linux only")
async def test_a_slow_read_alone_is_a_missed_bound(tmp_path: Path) -> None:
    with pytest.raises(TooLate, match=r"gateway: .* took \d+\.\d s"):
        await run_fuzz(14, tmp_path, inputs=20, seconds=PATIENCE_SECONDS, read_seconds=0.0)
