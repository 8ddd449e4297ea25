"""CPU seconds of imports, each in a new process, beside the libraries that every participant needs.

    python -m benchmarks.imports

Modules are compiled before, as in an installed package. A machine under load makes all figures larger, so what counts
is the import of `Participant` as a multiple of that of the libraries alone: at most `MOST_TIMES`, else the exit code
is 1. The bound leaves room for load: on an idle machine the libraries take 0.14 s, a participant 1.75 times as long.
"""

import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Final

LIBRARIES: Final = "import asyncio, websockets.asyncio.client; from pydantic import BaseModel"
PARTICIPANT: Final = "from mew_agent import Participant"
MOST_TIMES: Final = 1.9

IMPORTS: Final = ("pass", "import asyncio, websockets, pydantic", LIBRARIES, PARTICIPANT, "from mew_agent import Agent")


def is_within_bound(libraries: float, participant: float) -> bool:
    """Return whether a participant takes at most `MOST_TIMES` as long as its libraries."""
    return participant <= MOST_TIMES * libraries


def cpu_seconds(*codes: str, runs: int = 10, is_enough: Callable[..., bool] = lambda *seconds: False) -> list[float]:
    """Return the least CPU time of several runs of each: others on the machine only add to it.

    `is_enough` gets the least times after the third run and each later one; no more are made once it returns True.
    """

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    least = dict.fromkeys(codes, math.inf)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # The first run of each compiles its modules. Then in turn, so that a busy second touches all of them.
        for run in range(runs + 1):
            for code in codes:
                before = used()
                subprocess.run([sys.executable, "-c", code], check=True, env=environment)
                if run:
                    least[code] = min(least[code], used() - before)
            if run >= 3 and is_enough(*least.values()):
                break
    return list(least.values())


def main() -> int:
    figures = dict(zip(IMPORTS, cpu_seconds(*IMPORTS), strict=True))
    for code, seconds in figures.items():
        print(f"{seconds:6.3f} s  {code}")
    times = figures[PARTICIPANT] / figures[LIBRARIES]
    print(f"a participant takes {times:.2f} times as long as its libraries (at most {MOST_TIMES})")
    return int(not is_within_bound(figures[LIBRARIES], figures[PARTICIPANT]))


if __name__ == "__main__":
    sys.exit(main())
