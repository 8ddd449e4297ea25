"""Measures what several gateways on NATS cost for one space, compared with one gateway without a backplane.

    python -m benchmarks.scale [--gateways 1 2 4] [--members 100] [--deliveries 20000] [--rounds 9] [--latencies 200]
                              [--bursts 1 10] [--every 0]

Every gateway runs in a process of its own with `--members` members; all of them share one NATS server. `alone` is one
gateway with as many members and no backplane, its history in memory. Short rounds alternate between all of them, so
that other load affects them alike. The table shows medians.

BURST members send at the same moment, and the next ones when all members have received these. With 1, every envelope
is an append of its own. The more arrive together, the more share an append and a write to each member, as in a large
space. With `--every`, at least so many milliseconds pass between two bursts. Without it, a slower arrangement gets
fewer messages a second, and after each wait its data has left the CPU's caches: `alone` costs a third more as well if
half a millisecond passes before each message. GATEWAY is the CPU time of all gateways per delivery, NATS that of the
server. OVERHEAD is GATEWAY divided by that of `alone`. CAPACITY is how many times the deliveries of one gateway on NATS
the gateways could make with a core each; it leaves out NATS, whose share is the column next to it. p50 and p99 are the
time from one message to the last member that receives it.

The second table calculates what more members than this machine can hold would cost, from the measured costs of single
envelopes. The exit code is 1 if, with BURST 1, OVERHEAD exceeds 1.3, CAPACITY of two gateways is below 1.8, or p99
exceeds 3 times that of `alone`.
"""

import argparse
import select
import socket
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import psutil
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import has_uvloop, serve_gateway
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions
from mew_spaces.parts.jetstream.jetstream import connect_jetstream
from mew_spaces.parts.jetstream.nats_server import NatsServer
from mew_spaces.parts.jetstream.shared_storage import on_backplane

from benchmarks.fanout import SPACE, Members, masked, message, space_of
from benchmarks.server_process import answer_requests, ask, server_process

KEPT_BYTES: Final = 64 * 1024 * 1024
MAX_OVERHEAD: Final = 1.3
MIN_CAPACITY: Final = 1.8
MAX_SLOWDOWN: Final = 3.0
LEAST_MEMBERS: Final = 10
"""As many as send at the same moment, and the smaller of the two spaces whose costs are compared."""

SIMULATED: Final = ((1_000, 1), (1_000, 2), (1_000, 4), (10_000, 4), (10_000, 10), (10_000, 20))


def run_gateway(control: Any, members: int, address: str | None, prefix: str) -> None:
    """Run one gateway until asked to stop."""
    answer_requests(control)
    config = space_of(members)

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            backplane = None
            if address is not None:
                backplane = await stack.enter_async_context(
                    connect_jetstream(
                        JetStreamOptions(servers=(address,), prefix=prefix), SPACE, folder=Path(), kept_bytes=KEPT_BYTES
                    )
                )
            serving = serve_gateway(
                config,
                tokens=TokenBook.generate(config),
                storage=None if backplane is None else on_backplane(backplane),
            )
            control.send((await stack.enter_async_context(serving)).port)
            await anyio.sleep_forever()

    anyio.run(serve, backend_options={"use_uvloop": has_uvloop()})


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
class Costs:
    """CPU seconds per delivery, by round."""

    gateway: list[float] = field(default_factory=list)
    nats: list[float] = field(default_factory=list)


class Arrangement:
    """Gateways that hold a space together, with their members."""

    def __init__(self, stack: ExitStack, gateways: int, members: int, nats: NatsServer | None, every: float) -> None:
        self.name = "alone" if nats is None else f"{gateways} on NATS"
        self.gateways = gateways
        self.members = members
        self._every_seconds = every
        self.costs: dict[int, Costs] = defaultdict(Costs)
        """By the number of members that sent at the same moment."""
        self._latencies: list[float] = []
        self._numbers = iter(range(10**9))
        self._nats = None if nats is None else psutil.Process(nats.pid)
        arguments = (gateways * members, None if nats is None else nats.address, f"g{gateways}m{members}")
        started = [stack.enter_context(server_process(run_gateway, *arguments)) for _ in range(gateways)]
        self._controls = [control for _, control in started]
        self.clients = Spread([port for port, _ in started], gateways * members)
        stack.callback(self.clients.close)
        self.clients.read_until_quiet(1.0)
        for _ in range(5):
            self._send(20, 10)

    def measure(self, deliveries: int, burst: int) -> None:
        """Measure one round of bursts."""
        messages = max(1, deliveries // (self.members * self.gateways * burst)) * burst
        before, stored = self._cpu(), self._nats_cpu()
        self._send(messages, burst)
        deliveries = messages * len(self.clients.sockets)
        self.costs[burst].gateway.append((self._cpu() - before) / deliveries)
        self.costs[burst].nats.append((self._nats_cpu() - stored) / deliveries)

    def measure_latencies(self, messages: int) -> None:
        """Measure how long messages take that are sent one at a time."""
        self._latencies += [self.clients.one(next(self._numbers)) for _ in range(messages)]

    def percentile(self, share: float) -> float:
        """The latency that this share of the messages did not exceed."""
        ordered = sorted(self._latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    def _send(self, messages: int, burst: int) -> None:
        for _ in range(0, messages, burst):
            due = time.perf_counter() + self._every_seconds
            self.clients.exchange(burst, lambda _, sender: message(next(self._numbers), sender), burst)
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)

    def _cpu(self) -> float:
        return sum((ask(control) for control in self._controls), 0.0)

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
    parser.add_argument("--every", type=float, default=0.0, help="milliseconds from one burst to the next, at least")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--latencies", type=int, default=200, help="messages sent one at a time, in all rounds together"
    )
    parser.add_argument(
        "--bursts",
        type=int,
        nargs="+",
        default=[1, 10],
        choices=range(1, 11),
        metavar="1..10",
        help="members that send at the same moment",
    )
    options = parser.parse_args()
    if options.members <= LEAST_MEMBERS:
        parser.error(f"--members: {options.members} (expected at least {LEAST_MEMBERS + 1})")
    each, every = options.members, options.every / 1000
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        nats = NatsServer(Path(folder))
        nats.start()
        stack.callback(nats.stop)
        arrangements = [
            Arrangement(stack, 1, each, None, every),
            *(Arrangement(stack, count, each, nats, every) for count in options.gateways),
            Arrangement(stack, 1, max(LEAST_MEMBERS, each // 4), nats, every),
        ]
        for _ in range(options.rounds):
            for one in arrangements:
                for burst in {1, *options.bursts}:
                    one.measure(options.deliveries, burst)
                one.measure_latencies(-(-options.latencies // options.rounds))
    *compared, small = arrangements
    print(f"{'GATEWAYS':>10} {'MEMBERS':>8} {'BURST':>6} {'GATEWAY us':>11} {'NATS us':>8} {'OVERHEAD':>9}", end=" ")
    print(f"{'CAPACITY':>9} {'p50 ms':>7} {'p99 ms':>7}")
    is_met, *_ = [print_costs(compared, burst) for burst in sorted({1, *options.bursts})]
    simulate(statistics.median(compared[0].costs[1].gateway), compared[1], small)
    return 0 if is_met else 1


def print_costs(compared: list[Arrangement], burst: int) -> bool:
    """Print the rows of one size of bursts; the first arrangement is `alone`. Returns whether they meet the goals."""
    alone, first, *_ = compared
    one_gateway = statistics.median(first.costs[burst].gateway) / first.gateways
    is_met = True
    for one in compared:
        costs = one.costs[burst]
        cost = statistics.median(costs.gateway)
        overhead = statistics.median(
            on_nats / without for on_nats, without in zip(costs.gateway, alone.costs[burst].gateway, strict=True)
        )
        # Each delivery costs `cost` on one of the gateways; with a core each, all of them deliver at the same time.
        capacity = one_gateway / (cost / one.gateways)
        p50, p99 = one.percentile(0.5), one.percentile(0.99)
        print(
            f"{one.name:>10} {one.gateways * one.members:>8} {burst:>6} {cost * 1e6:>11.2f}"
            f" {statistics.median(costs.nats) * 1e6:>8.2f} {overhead:>9.2f}"
            f" {'' if one is alone else f'{capacity:.2f}':>9}",
            f"{p50 * 1e3:>7.2f} {p99 * 1e3:>7.2f}" if burst == 1 else "",
        )
        is_met = is_met and overhead <= MAX_OVERHEAD and p99 <= MAX_SLOWDOWN * alone.percentile(0.99)
        is_met = is_met and (one.gateways != 2 or capacity >= MIN_CAPACITY)
    return is_met


def simulate(alone: float, full: Arrangement, small: Arrangement) -> None:
    """Print how many envelopes a second gateways could deliver, from what an envelope and a delivery cost."""
    # Two sizes give two costs: cost per envelope = fixed + members * each.
    costs = {one.members: statistics.median(one.costs[1].gateway) * one.members for one in (full, small)}
    each = (costs[full.members] - costs[small.members]) / (full.members - small.members)
    fixed = costs[full.members] - each * full.members
    stored = statistics.median(full.costs[1].nats) * full.members
    print(f"\ncalculated from {fixed * 1e6:.0f} us an envelope and gateway, {each * 1e6:.2f} us a delivery,", end=" ")
    print(f"{stored * 1e6:.0f} us an envelope in NATS ({alone * 1e6:.2f} us a delivery without a backplane)")
    print(f"{'MEMBERS':>8} {'GATEWAYS':>9} {'ENVELOPES/S':>12} {'DELIVERIES/S':>13} {'NATS CORES':>11}")
    for members, gateways in SIMULATED:
        rate = 1 / (fixed + each * members / gateways)
        print(f"{members:>8} {gateways:>9} {rate:>12.0f} {rate * members:>13.0f} {rate * stored:>11.2f}")


if __name__ == "__main__":
    sys.exit(main())
