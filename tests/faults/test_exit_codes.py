"""A broken promise and a missed bound of waiting time end a run with different exit codes."""

from pathlib import Path

import pytest

from tests.faults.__main__ import LATE, judge
from tests.faults.witness import PromiseBroken, TooLate


@pytest.mark.parametrize(
    ("broken", "code"), [(None, 0), (TooLate("slow"), LATE), (PromiseBroken("lost"), 1), (AssertionError("wrong"), 1)]
)
def test_only_a_missed_bound_has_the_code_of_late_runs(broken: AssertionError | None, code: int) -> None:
    async def run(_: Path) -> str:
        if broken is not None:
            raise broken
        return "held"

    assert judge(run) == code
