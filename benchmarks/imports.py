"""CPU seconds and function calls of imports, each in a new process, beside the libraries that every participant needs.

    python -m benchmarks.imports

Modules are compiled before, as in an installed package. `Participant` should take at most `MOST_SECONDS`; a machine
under load makes all seconds larger. Calls are the same in each run, and a participant has as many times those of the
libraries as it has their seconds, with 1 to 3 % between them: at most `MOST_TIMES` as many, else the exit code is 1.
"""

import math
import os
import resource
import subprocess
import sys
import tempfile
from typing import Final

LIBRARIES: Final = "import asyncio, websockets.asyncio.client; from pydantic import BaseModel"
PARTICIPANT: Final = "from mew_agent import Participant"
MOST_SECONDS: Final = 0.25
MOST_TIMES: Final = 1.76

IMPORTS: Final = ("pass", "import asyncio, websockets, pydantic", LIBRARIES, PARTICIPANT, "from mew_agent import Agent")

COUNTER: Final = """
import sys

UNCOUNTED = {"_frozen_importlib", "_frozen_importlib_external", "importlib", "pydantic", "pydantic_core"}
calls = 0


def count(frame, event, arg):
    global calls
    calls += event == "call" and str(frame.f_globals.get("__name__")).partition(".")[0] not in UNCOUNTED


sys.setprofile(count)
exec(sys.argv[1])
sys.setprofile(None)
print(calls)
"""
"""Counts calls of Python functions, without those of two packages that differ where the time does not.

Calls of importlib depend on the folders that it searches and on what is compiled. Those of pydantic depend on its
version; a model that it builds shows in the calls of `typing` and `dataclasses`.
"""


def cpu_seconds(*codes: str, runs: int = 10) -> list[float]:
    """Return the least CPU time of several runs of each: others on the machine only add to it."""

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
    return list(least.values())


def calls(code: str) -> int:
    """Return how many Python functions are called while the code runs in a new process."""
    # Plugins of pydantic are looked for in all packages of the environment; coverage would import modules before.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    environment |= {"PYTHONHASHSEED": "0", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
    command = [sys.executable, "-c", COUNTER, code]
    return int(subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout)


def times_of_libraries() -> float:
    """Return the calls of the import of `Participant`, as a multiple of those of the libraries alone."""
    return calls(PARTICIPANT) / calls(LIBRARIES)


def main() -> int:
    for code, seconds in zip(IMPORTS, cpu_seconds(*IMPORTS), strict=True):
        bound = f" (at most {MOST_SECONDS} s)" if code == PARTICIPANT else ""
        print(f"{seconds:6.3f} s {calls(code):8,} calls  {code}{bound}")
    times = times_of_libraries()
    print(f"a participant makes {times:.2f} times as many calls as its libraries (at most {MOST_TIMES})")
    return int(times > MOST_TIMES)


if __name__ == "__main__":
    sys.exit(main())
