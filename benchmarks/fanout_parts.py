"""Measures which part of the gateway takes how long for one envelope: where the cost of `benchmarks.fanout` arises.

    python -m benchmarks.fanout_parts [--members 100] [--envelopes 2000] [--durability memory flushed synced]

The gateway runs in a process of its own, with a stopwatch around the functions that an envelope goes through; each
figure is the median of what one function takes without those in it. The stopwatches add 1 to 2 microseconds a line.
REST is the CPU time per envelope that no line covers: the event loop, the wait for the next message, and the threads
that write logs and history. The floor's server, which only writes, has a stopwatch around its only function.
"""

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from mew_listener.websocket_connection import WebSocketConnection
from mew_spaces.core.space_core import SpaceCore
from mew_spaces.gateway import connection
from mew_spaces.gateway.audit import AuditLog
from mew_spaces.gateway.outbound import Fanout
from mew_spaces.gateway.performer import EffectPerformer
from mew_spaces.gateway.service import SpaceService
from mew_spaces.gateway.storage import LocalStorage
from mew_spaces.log.memory import SpaceLog
from mew_spaces.log.sqlite import SqliteLog

from benchmarks.fanout import Bare, Bench, keep_to_core, run_server
from benchmarks.server_process import server_process

PARTS: tuple[tuple[str, object, str], ...] = (
    ("read the frame", WebSocketConnection, "data_received"),
    ("phase of the connection", connection.Connection, "receive"),
    ("decode and encode", connection, "decode_complete"),
    ("clock, rate and form", SpaceService, "receive"),
    ("rules and permissions", SpaceCore, "decide"),
    ("queue for the logs: received", AuditLog, "log_received"),
    ("queue for the logs: decided", AuditLog, "log_decision"),
    ("queue for the logs: delivered", AuditLog, "log_delivered"),
    ("order of events", LocalStorage, "submit"),
    ("apply", SpaceCore, "apply"),
    ("complete", SpaceService, "complete"),
    ("number", SpaceService, "number"),
    ("store", SqliteLog, "write"),
    ("publish", SpaceLog, "publish"),
    ("frame and collect", EffectPerformer, "write_broadcast"),
    ("write to the members", Fanout, "flush"),
)
FLOOR_PARTS: tuple[tuple[str, object, str], ...] = (("write to the members", Bare, "data_received"),)


class Stopwatches:
    """Time in each function without the timed functions that it calls, in microseconds."""

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = defaultdict(list)
        self._inner = [0]

    def put_around(self, name: str, owner: Any, attribute: str) -> None:
        """Time every call of `owner.attribute`."""
        function: Callable[..., Any] = getattr(owner, attribute)
        seen, inner, clock = self.seen[name], self._inner, time.perf_counter_ns

        @functools.wraps(function)
        def timed(*given: Any, **named: Any) -> Any:
            inner.append(0)
            begun = clock()
            try:
                return function(*given, **named)
            finally:
                took = clock() - begun
                seen.append((took - inner.pop()) / 1000)
                inner[-1] += took

        setattr(owner, attribute, timed)


class TimedControl:
    """The pipe of a server; also answers with the times since the last answer."""

    def __init__(self, control: Any, watches: Stopwatches) -> None:
        self._control, self._watches = control, watches

    def send(self, value: object) -> None:
        """Send an answer."""
        self._control.send(value)

    def recv(self) -> str:
        """Receive the next request that is not for the times."""
        while (request := self._control.recv()) == "times":
            self._control.send({name: list(seen) for name, seen in self._watches.seen.items()})
            for seen in self._watches.seen.values():
                seen.clear()
        return str(request)


def run_timed(control: Any, kind: str, members: int) -> None:
    """Run a server with stopwatches."""
    watches = Stopwatches()
    for part in FLOOR_PARTS if kind == "floor" else PARTS:
        watches.put_around(*part)
    run_server(TimedControl(control, watches), kind, members)


def measure(kind: str, members: int, envelopes: int) -> tuple[dict[str, float], float]:
    """Return the median of each part and the CPU time, in microseconds per envelope."""
    cores = os.sched_getaffinity(0)
    with server_process(run_timed, kind, members) as (port, ours):
        keep_to_core(1)
        bench = Bench(port, ours, members=members, joins=kind != "floor")
        bench.round(envelopes)
        ours.send("times")
        ours.recv()
        measured = bench.round(envelopes)
        ours.send("times")
        times: dict[str, list[float]] = ours.recv()
        bench.members.close()
    os.sched_setaffinity(0, cores)
    # `flush` is called more often than it writes, so only the longest calls count, one for each envelope.
    medians = {name: statistics.median(sorted(seen)[-envelopes:]) for name, seen in times.items() if seen}
    return medians, measured.microseconds * members


def main() -> None:
    """Print a table for the floor and for each durability."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--envelopes", type=int, default=2_000)
    parser.add_argument(
        "--durability", nargs="+", default=["memory", "flushed"], choices=["memory", "flushed", "synced"]
    )
    options = parser.parse_args()
    for name in ("floor", *options.durability):
        with tempfile.TemporaryDirectory() as state:
            os.environ |= {"BENCHMARK_STATE": state, "BENCHMARK_DURABILITY": name if name != "floor" else "memory"}
            parts, total = measure("floor" if name == "floor" else "gateway", options.members, options.envelopes)
        parts["rest"] = total - sum(parts.values())
        print(f"{name}: CPU microseconds per envelope to {options.members} members")
        for part, microseconds in (*parts.items(), ("total", total)):
            print(f"{part:>28} {microseconds:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
