"""Measures how fast many agents start and how much memory they take, in shared processes and in one process each.

    python -m benchmarks.many_agents [--agents 100] [--alone 10]

Each row is a space of its own with agents on the rehearsal model, started by `mew up --detach`. Memory is the
proportional set size of all its processes: gateway, model server, supervisor and agents. It is taken when all agents
have joined, and again when each has answered a chat. The last row scales the memory of one process per agent to the
number of agents in the first. The exit code is 1 if the first row exceeds 1 GiB or 20 seconds.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import anyio
import psutil
from mew_spaces.gateway.auth import state_dir
from mew_spaces.launch.run_file import RunFile, read_run_file, run_file_path

from mew_agent.participant.participant import Participant

MAX_SECONDS = 20.0
MAX_MIB = 1024.0
ANSWER_SECONDS = 300.0

_MEW = (sys.executable, "-P", "-m", "mew_agent")
_PERSON = "ada"


@dataclass(frozen=True)
class Row:
    """What one space took."""

    agents: int
    processes: int
    start_seconds: float
    start_mib: float
    base_mib: float
    """Memory of the processes that are no agents."""
    answer_seconds: float
    answered_mib: float
    cpu_seconds: float


def measure(agents: int, *, own_process: bool) -> Row:
    """Start a space, ask each of its agents once, and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "space.yaml"
        path.write_text(space_of(agents, own_process=own_process), encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MEW_", "OPENAI_"))}
        begun = time.monotonic()
        try:
            shown = mew("up", "--detach", "--port", "0", folder=folder, environment=environment)
            start_seconds = time.monotonic() - begun
            joined = len(re.findall(r"^  a\d+: joined$", shown, re.MULTILINE))
            if joined != agents:
                raise RuntimeError(f"{joined} of {agents} agents joined:\n{shown}")
            run = read_run_file(run_file_path(state_dir(path)))
            assert run is not None
            start_mib, base_mib = memory_mib(run.pids.participants.values()), memory_mib(services_of(run))
            token = (state_dir(path) / "tokens" / f"{_PERSON}.token").read_text(encoding="utf-8").strip()
            begun = time.monotonic()
            anyio.run(ask_all, run, token, agents)
            return Row(
                agents,
                len({*run.pids.participants.values()}),
                start_seconds,
                start_mib + base_mib,
                base_mib,
                time.monotonic() - begun,
                memory_mib(run.pids.participants.values()) + memory_mib(services_of(run)),
                sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in {*run.pids.participants.values()}),
            )
        finally:
            mew("down", folder=folder, environment=environment)


def space_of(agents: int, *, own_process: bool) -> str:
    """Return a space.yaml with a person and agents `a0`, `a1` ..."""
    own = ", own_process: true" if own_process else ""
    agent = f"{{role: agent, auto_start: true, agent: {{base_url: rehearsal}}{own}}}"
    lines = ["space: {id: many}", "participants:", f'  {_PERSON}: {{capabilities: [{{kind: "*"}}]}}']
    return "\n".join((*lines, *(f"  a{number}: {agent}" for number in range(agents)))) + "\n"


def mew(*arguments: str, folder: str, environment: dict[str, str]) -> str:
    """Run a command in a folder and return what it printed."""
    done = subprocess.run((*_MEW, *arguments), cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def services_of(run: RunFile) -> list[int]:
    """Return the ids of the processes that are no agents."""
    return [pid for pid in (run.pids.supervisor, run.pids.gateway, run.pids.model) if pid is not None]


def memory_mib(pids: Iterable[int]) -> float:
    """Return the proportional set size of processes together."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in set(pids)) / 2**20


async def ask_all(run: RunFile, token: str, agents: int) -> None:
    """Ask each agent one thing, ten at a time, and wait for all answers."""
    limit = anyio.CapacityLimiter(10)

    async def ask(me: Participant, name: str) -> None:
        async with limit:
            await me.ask_agent(name, "Say a word.", inactivity_seconds=ANSWER_SECONDS)

    async with Participant(run.ws, space=run.space, id=_PERSON, token=token) as me, anyio.create_task_group() as tasks:
        for number in range(agents):
            tasks.start_soon(ask, me, f"a{number}")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--alone", type=int, default=10, help="agents in one process each")
    options = parser.parse_args()
    heading = ("", "AGENTS", "PROCESSES", "JOINED s", "MiB", "ANSWERED s", "MiB", "CPU s EACH")
    print("{:<22}{:>7}{:>10}{:>10}{:>8}{:>12}{:>8}{:>12}".format(*heading))
    shared = measure(options.agents, own_process=False)
    show("shared processes", shared)
    alone = measure(options.alone, own_process=True)
    show("one process each", alone)
    each = ((one - alone.base_mib) / alone.agents for one in (alone.start_mib, alone.answered_mib))
    joined, answered = (alone.base_mib + one * shared.agents for one in each)
    seconds = alone.start_seconds / alone.agents * shared.agents
    print(
        f"{'  scaled':<22}{shared.agents:>7}{shared.agents:>10}{seconds:>10.1f}{joined:>8.0f}{'':>12}{answered:>8.0f}"
    )
    return int(shared.start_seconds > MAX_SECONDS or max(shared.start_mib, shared.answered_mib) > MAX_MIB)


def show(name: str, row: Row) -> None:
    """Print a row."""
    print(
        f"{name:<22}{row.agents:>7}{row.processes:>10}{row.start_seconds:>10.1f}{row.start_mib:>8.0f}"
        f"{row.answer_seconds:>12.1f}{row.answered_mib:>8.0f}{row.cpu_seconds / row.agents:>12.2f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
