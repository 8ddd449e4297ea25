"""`python -m tests.faults`: run the fault harness for as long as wanted."""

import argparse
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio

from tests.faults.fuzz import run_fuzz
from tests.faults.fuzz_backplane import fuzz_backplane
from tests.faults.harness import FaultPlan, run_faults
from tests.faults.receipts import ReceiptPlan, run_receipts
from tests.faults.several import SeveralPlan, run_several
from tests.faults.soak import run_soak
from tests.faults.witness import TooLate

Plan = TypeVar("Plan")

LATE = 3
"""Exit code of a run that missed a bound of waiting time and kept all other promises. `.ci/run` tries it once more."""


def main() -> int:
    """Run one plan, or one seed after the other until the time is over; the exit code says whether all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="first seed (default: 1)")
    parser.add_argument("--seconds", type=float, help="how long faults go on (default: 30)")
    parser.add_argument("--members", type=int, default=6)
    parser.add_argument("--cuts", type=int, default=0, help="run until so many connections were cut")
    parser.add_argument("--kills", type=int, default=0, help="run until the gateway was killed so often")
    parser.add_argument("--agent-kills", type=int, default=0, help="run until agents were killed so often")
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--sends-per-second", type=float, default=8.0, help="of each member")
    parser.add_argument("--durability", choices=("flushed", "synced"), default="flushed")
    parser.add_argument("--fuzz", action="store_true", help="send invalid and hostile input to all servers")
    parser.add_argument("--inputs", type=int, default=100_000, help="with --fuzz (default: 100,000; 0: no limit)")
    parser.add_argument("--only-gateway", action="store_true", help="with --fuzz: one server, at its full rate")
    parser.add_argument("--backplane", action="store_true", help="write malformed messages of NATS instead (60 s)")
    parser.add_argument("--soak", action="store_true", help="measure memory at a low rate instead (default: 900 s)")
    parser.add_argument("--several", action="store_true", help="two gateways on three NATS servers (default: 60 s)")
    parser.add_argument("--receipts", action="store_true", help="compare read receipts with the prompts of the models")
    parser.add_argument("--chats", type=int, default=1_000, help="with --receipts (default: 1,000)")
    chosen = parser.parse_args()
    logging.getLogger("mew_agent").setLevel(logging.ERROR)
    if chosen.fuzz:
        return fuzz(chosen.seed, chosen.inputs or 2**62, chosen.seconds or 3600.0, whole=not chosen.only_gateway)
    if chosen.backplane:
        return backplane(chosen.seed, chosen.seconds or 60.0)
    if chosen.soak:
        return soak(chosen.seconds or 900.0)
    if chosen.receipts:
        return judged(run_receipts, ReceiptPlan(chosen.seed, chosen.chats, chosen.several))
    if chosen.several:
        return judged(run_several, SeveralPlan(chosen.seed, chosen.seconds or 60.0))
    seconds = chosen.seconds if chosen.seconds or chosen.cuts or chosen.kills or chosen.agent_kills else 30.0
    plan = FaultPlan(
        seed=chosen.seed,
        members=chosen.members,
        seconds=seconds,
        cuts=chosen.cuts,
        kills=chosen.kills,
        agent_kills=chosen.agent_kills,
        agents=chosen.agents,
        sends_per_second=chosen.sends_per_second,
        durability=chosen.durability,
    )
    return judged(run_faults, plan)


def judged(run: Callable[[Plan, Path], Awaitable[object]], plan: Plan) -> int:
    """Run a plan in a folder of its own and print the report; see `judge`."""
    return judge(lambda folder: run(plan, folder))


def judge(run: Callable[[Path], Awaitable[object]]) -> int:
    """Run in a folder of its own and print the report.

    Returns 0 if all promises held, `LATE` if only a bound of waiting time was missed, and 1 for any other violation.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(anyio.run(run, Path(folder)))
        except AssertionError as broken:
            print(broken, file=sys.stderr)
            return LATE if isinstance(broken, TooLate) else 1
    return 0


def fuzz(seed: int, inputs: int, seconds: float, *, whole: bool) -> int:
    """Send invalid and hostile input; the exit code says whether all servers held."""
    return judge(lambda folder: run_fuzz(seed, folder, inputs=inputs, seconds=seconds, whole=whole))


def backplane(seed: int, seconds: float) -> int:
    """Write malformed messages of NATS; the exit code says whether the gateway held."""
    return judge(lambda folder: fuzz_backplane(seed, folder, seconds=seconds))


def soak(seconds: float) -> int:
    """Measure memory; the exit code says whether it stayed flat."""
    return judge(lambda folder: run_soak(folder, seconds=seconds))


if __name__ == "__main__":
    sys.exit(main())
