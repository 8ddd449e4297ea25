"""CPU seconds of imports, each in a new process, beside the libraries that every participant needs."""

import resource
import subprocess
import sys

IMPORTS = (
    "pass",
    "import asyncio, websockets, pydantic",
    "import asyncio, websockets.asyncio.client; from pydantic import BaseModel",
    "from mew_agent import Participant",
    "from mew_agent import Agent",
)


def cpu_seconds(code: str, runs: int = 10) -> float:
    """Return the least CPU time of several runs: others on the machine only add to it."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    found = []
    for _ in range(runs):
        before = used()
        subprocess.run([sys.executable, "-c", code], check=True)
        found.append(used() - before)
    return min(found)


if __name__ == "__main__":
    for code in IMPORTS:
        print(f"{cpu_seconds(code):6.3f} s  {code}")
