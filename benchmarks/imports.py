"""CPU seconds of imports, each in a new process, beside the libraries that every participant needs.

    python -m benchmarks.imports

Modules are compiled before, as in an installed package. A machine under load makes all figures larger, so what counts
is the import of `Participant` as a multiple of that of the libraries alone: at most `MOST_TIMES`, else the exit code
is 1. On an idle machine the libraries take 0.11 s, which makes 0.25 s.
"""

import os
import resource
import subprocess
import sys
import tempfile
from typing import Final

LIBRARIES: Final = "import asyncio, websockets.asyncio.client; from pydantic import BaseModel"
PARTICIPANT: Final = "from mew_agent import Participant"
MOST_TIMES: Final = 2.27

IMPORTS: Final = ("pass", "import asyncio, websockets, pydantic", LIBRARIES, PARTICIPANT, "from mew_agent import Agent")


def cpu_seconds(*codes: str, runs: int = 10) -> list[float]:
    """Return the least CPU time of several runs of each: others on the machine only add to it."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    found: dict[str, list[float]] = {code: [] for code in codes}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # The first run of each compiles its modules. Then in turn, so that a busy second touches all of them.
        for run in range(runs + 1):
            for code, seconds in found.items():
                before = used()
                subprocess.run([sys.executable, "-c", code], check=True, env=environment)
                if run:
                    seconds.append(used() - before)
    return [min(seconds) for seconds in found.values()]


def main() -> int:
    figures = dict(zip(IMPORTS, cpu_seconds(*IMPORTS), strict=True))
    for code, seconds in figures.items():
        print(f"{seconds:6.3f} s  {code}")
    times = figures[PARTICIPANT] / figures[LIBRARIES]
    print(f"a participant takes {times:.2f} times as long as its libraries (at most {MOST_TIMES})")
    return int(times > MOST_TIMES)


if __name__ == "__main__":
    sys.exit(main())
