"""Measures what it costs to hold one space with several gateways over NATS, beside one gateway by itself.

    python -m benchmarks.scale [--gateways 1 2 4] [--members 100] [--deliveries 20000] [--rounds 9] [--latencies 200]
                              [--burst 1]

Every gateway runs in a process of its own, with `--members` members each; all of them share one NATS server. `alone` is
one gateway with as many members and no backplane, its history in memory. Short rounds alternate between all of them, so
that other load affects them alike; the table shows medians.

GATEWAY is CPU time of all gateways per delivery, NATS that of the server. `--burst N` lets N members send at the same
moment: the more arrive together, the more leave in one write, with a backplane and without. OVERHEAD is gateway CPU per
delivery next to `alone`. CAPACITY is how many times as many deliveries as one gateway on the backplane they could make
if each had a core of its own; it says nothing about NATS, whose share is the column next to it. p50 and p99 are the
time from one message alone until the last member has it.

The second table takes these costs to more members than this machine can hold: it is a calculation, not a measurement.
The exit code is 1 if OVERHEAD exceeds 1.3, CAPACITY of two gateways is below 1.8, or p99 exceeds 3 times `alone`.
"""

import argparse
import select
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import anyio
import psutil
from mew_spaces.backplane.jetstream import connect_jetstream
from mew_spaces.backplane.nats_server import NatsServer
from mew_spaces.config.backplane_options import BackplaneOptions
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import has_uvloop, serve_gateway

from benchmarks.fanout import SPACE, Members, answer_clock, masked, message, space_of

KEPT_BYTES: Final = 64 * 1024 * 1024
MAX_OVERHEAD: Final = 1.3
MIN_CAPACITY: Final = 1.8
MAX_SLOWDOWN: Final = 3.0
SIMULATED: Final = ((1_000, 1), (1_000, 2), (1_000, 4), (10_000, 4), (10_000, 10), (10_000, 20))


def run_gateway(control: Any, members: int, address: str | None, prefix: str) -> None:
    """Run one gateway until asked to stop."""
    threading.Thread(target=answer_clock, args=(control,), daemon=True).start()
    config = space_of(members)

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            backplane = None
            if address is not None:
                backplane = await stack.enter_async_context(
                    connect_jetstream(
                        BackplaneOptions(servers=(address,), prefix=prefix), SPACE, folder=Path(), kept_bytes=KEPT_BYTES
                    )
                )
            serving = serve_gateway(config, tokens=TokenBook.generate(config), backplane=backplane)
            control.send((await stack.enter_async_context(serving)).port)
            await anyio.sleep_forever()

    anyio.run(serve, backend_options={"use_uvloop": has_uvloop()})


@contextmanager
def gateway_process(members: int, address: str | None, prefix: str) -> Iterator[tuple[int, Any]]:
    """A gateway process: its port, and the pipe for requests of its CPU time."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_gateway, args=(theirs, members, address, prefix), daemon=True)
    process.start()
    try:
        yield ours.recv(), ours
    finally:
        ours.send("stop")
        process.join(10)


class Spread(Members):
    """Members of several gateways, read by one poller: the first one joins at the first gateway, and so on."""

    def __init__(self, ports: list[int], count: int) -> None:
        self.poller = select.epoll()
        self.sockets: dict[int, socket.socket] = {}
        self.received: dict[int, int] = {}
        self.total = 0
        for index in range(count):
            self._connect(ports[index % len(ports)], index, joins=True)
        self.sender = next(iter(self.sockets.values()))

    def one(self, index: int) -> float:
        """Send one message, and return after how many seconds the last member had it."""
        size = len(masked(message(0))) - 4  # a server's frame has no mask
        due = self.total + size * len(self.sockets)
        begun = time.perf_counter()
        self.sender.sendall(masked(message(index)))
        while self.total < due:
            if not self.read(10):
                raise TimeoutError("members received no data in time")
        return time.perf_counter() - begun


@dataclass(slots=True)
class Measured:
    """What was seen of one arrangement: CPU seconds per delivery by round, and seconds by message."""

    gateway: list[float] = field(default_factory=list)
    nats: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """The latency that this share of the messages did not exceed."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Arrangement:
    """Gateways that hold a space together, with their members."""

    def __init__(self, stack: ExitStack, gateways: int, members: int, nats: NatsServer | None, burst: int) -> None:
        self.name = "alone" if nats is None else f"{gateways} on NATS"
        self.gateways = gateways
        self.members = members
        self.burst = burst
        self.measured = Measured()
        self._numbers = iter(range(10**9))
        self._nats = None if nats is None else psutil.Process(nats.pid)
        address = None if nats is None else nats.address
        prefix = f"g{gateways}m{members}"
        started = [stack.enter_context(gateway_process(gateways * members, address, prefix)) for _ in range(gateways)]
        self._controls = [control for _, control in started]
        self.clients = Spread([port for port, _ in started], gateways * members)
        stack.callback(self.clients.close)
        self.clients.read_until_quiet(1.0)
        for _ in range(5):
            self._burst(2 * self.burst)

    def round(self, messages: int, latencies: int) -> None:
        """Measure one round."""
        before, stored = self._cpu(), self._nats_cpu()
        self._burst(messages)
        deliveries = messages * len(self.clients.sockets)
        self.measured.gateway.append((self._cpu() - before) / deliveries)
        self.measured.nats.append((self._nats_cpu() - stored) / deliveries)
        self.measured.latencies += [self.clients.one(next(self._numbers)) for _ in range(latencies)]

    def _burst(self, messages: int) -> None:
        self.clients.exchange(messages, lambda _, sender: message(next(self._numbers), sender), self.burst)

    def _cpu(self) -> float:
        for control in self._controls:
            control.send("cpu")
        return sum((float(control.recv()) for control in self._controls), 0.0)

    def _nats_cpu(self) -> float:
        if self._nats is None:
            return 0.0
        times = self._nats.cpu_times()
        return times.user + times.system


def main() -> int:
    """Print the tables. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gateways", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--members", type=int, default=100, help="of each gateway")
    parser.add_argument("--deliveries", type=int, default=20_000, help="per round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--latencies", type=int, default=200, help="messages sent one at a time, in all rounds together"
    )
    parser.add_argument("--burst", type=int, default=1, choices=range(1, 11), metavar="1..10")
    options = parser.parse_args()
    each = options.members
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        nats = NatsServer(Path(folder))
        nats.start()
        stack.callback(nats.stop)
        few = max(options.burst, each // 4)
        arrangements = [
            Arrangement(stack, 1, each, None, options.burst),
            *(Arrangement(stack, count, each, nats, options.burst) for count in options.gateways),
            Arrangement(stack, 1, few, nats, options.burst),
        ]
        for _ in range(options.rounds):
            for one in arrangements:
                bursts = max(1, options.deliveries // (one.members * one.gateways * options.burst))
                one.round(bursts * options.burst, -(-options.latencies // options.rounds))
    alone, *shared, small = arrangements
    print(f"{'GATEWAYS':>10} {'MEMBERS':>8} {'GATEWAY us':>11} {'NATS us':>8} {'OVERHEAD':>9} {'CAPACITY':>9}", end="")
    print(f" {'p50 ms':>7} {'p99 ms':>7}")
    base = statistics.median(alone.measured.gateway)
    first = statistics.median(shared[0].measured.gateway) / shared[0].gateways
    is_met = True
    for one in (alone, *shared):
        cost = statistics.median(one.measured.gateway)
        overhead = statistics.median(
            together / by_itself
            for together, by_itself in zip(one.measured.gateway, alone.measured.gateway, strict=True)
        )
        # Each delivery costs `cost` somewhere; with a core each, `gateways` of them happen at the same time.
        capacity = first / (cost / one.gateways)
        p50, p99 = one.measured.percentile(0.5), one.measured.percentile(0.99)
        print(
            f"{one.name:>10} {one.gateways * one.members:>8} {cost * 1e6:>11.2f}"
            f" {statistics.median(one.measured.nats) * 1e6:>8.2f} {overhead:>9.2f}"
            f" {'' if one is alone else f'{capacity:.2f}':>9} {p50 * 1e3:>7.2f} {p99 * 1e3:>7.2f}"
        )
        is_met = is_met and overhead <= MAX_OVERHEAD and p99 <= MAX_SLOWDOWN * alone.measured.percentile(0.99)
        is_met = is_met and (one.gateways != 2 or capacity >= MIN_CAPACITY)
    simulate(base, shared[0], small)
    return 0 if is_met else 1


def simulate(alone: float, full: Arrangement, small: Arrangement) -> None:
    """Print how many envelopes a second gateways could deliver, from what an envelope and a delivery cost."""
    # Two sizes give two costs: cost per envelope = fixed + members * each.
    costs = {one.members: statistics.median(one.measured.gateway) * one.members for one in (full, small)}
    each = (costs[full.members] - costs[small.members]) / (full.members - small.members)
    fixed = costs[full.members] - each * full.members
    stored = statistics.median(full.measured.nats) * full.members
    print(f"\ncalculated from {fixed * 1e6:.0f} us an envelope and gateway, {each * 1e6:.2f} us a delivery,", end=" ")
    print(f"{stored * 1e6:.0f} us an envelope in NATS ({alone * 1e6:.2f} us a delivery without a backplane)")
    print(f"{'MEMBERS':>8} {'GATEWAYS':>9} {'ENVELOPES/S':>12} {'DELIVERIES/S':>13} {'NATS CORES':>11}")
    for members, gateways in SIMULATED:
        rate = 1 / (fixed + each * members / gateways)
        print(f"{members:>8} {gateways:>9} {rate:>12.0f} {rate * members:>13.0f} {rate * stored:>11.2f}")


if __name__ == "__main__":
    sys.exit(main())
