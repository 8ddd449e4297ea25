"""Measures the CPU cost of a delivery in the gateway and in a bare server that only writes (the floor).

    python -m benchmarks.fanout [--members 10 100 1000] [--deliveries 50000] [--rounds 15] [--frames]
                                [--least] [--burst 8]
                                [--durability memory flushed synced]
    python -m benchmarks.fanout --core [--members 100] [--durability memory flushed]

Server and members run in separate processes. Only the server's CPU time (user and system) counts. Each message is sent
when all members have received the one before, so that each costs the server one wake-up in both cases. The floor's
server treats whatever arrives as one message and writes the same number of bytes to each member with
`transport.write`: no parsing, no decision, no framing. With `--frames` the messages are frames of an open stream. Short
rounds alternate between the two servers, and each pair gives a ratio, so that other load affects both. The table shows
medians.

`--burst N` lets N members send at the same moment, and the next N when all members have received these. The gateway
then writes several envelopes to a member at once, as uvloop does for the floor's server: the floor of the main ratio
still gets one message after another, and BURST FLOOR is the same server under the same bursts.

`--least` measures, in place of the gateway, a server that does no more than the least for an envelope: it decodes and
encodes it with the gateway's codec, matches one capability, keeps it in memory, and writes it as the gateway does.
Its ratio is a bound for a gateway with this codec and these writes on this machine.

`--core` measures what an envelope costs inside the gateway before any byte leaves: decoding, deciding, storing and
one empty call per member, in this process, without a network. It shows the cost of an envelope right behind another
one (warm), and of one whose code and data have left the fast caches, as between deliveries to many sockets (cold).
Other load matters little here, because the best of many short rounds counts.
"""

import argparse
import asyncio
import base64
import hashlib
import itertools
import json
import os
import select
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import anyio
from mew_protocol.capability import CapabilitySet
from mew_protocol.codec import decode_complete
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.audit import AuditLog, logging_options
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.connection import Connection
from mew_spaces.gateway.gateway import has_uvloop, serve_gateway
from mew_spaces.gateway.history_files import open_log
from mew_spaces.gateway.log_writer import LogWriter
from mew_spaces.gateway.outbound import OutboundChannel, frame_json, frame_message
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.service import SpaceService
from mew_spaces.log.memory import Bounds, SpaceLog

from benchmarks.server_process import answer_requests, ask, server_process

SPACE = "bench"
TEXT = "x" * 200
ACCEPT_KEY = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

Control = "multiprocessing.connection.Connection[Any, Any]"


@dataclass(frozen=True, slots=True)
class Measured:
    """One round: CPU seconds of the server and the number of deliveries."""

    cpu_seconds: float
    deliveries: int

    @property
    def microseconds(self) -> float:
        """CPU time per delivery."""
        return self.cpu_seconds / self.deliveries * 1e6


def token(index: int) -> str:
    """Token of a member."""
    return f"token-{index}"


def space_of(members: int) -> SpaceConfig:
    """A space whose members may chat."""
    may = [{"kind": "chat"}, {"kind": "stream/request"}]
    people = {f"m{index}": {"tokens": [token(index)], "capabilities": may} for index in range(members)}
    # A benchmark sends as fast as it can, which the rate limit of a participant is there to refuse; and its members
    # only count bytes, so they answer no pings.
    limits = {"envelopes_per_second": 1e9, "envelope_burst": 10**9, "ping_interval_seconds": 0}
    history = {"durability": os.environ.get("BENCHMARK_DURABILITY", "memory")}
    return parse_space(
        json.dumps({"space": {"id": SPACE}, "participants": people, "limits": limits, "history": history})
    )


def keep_to_core(number: int) -> None:
    """Pin this process to one core: migrations change the cost of a wake-up more than the measured difference."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


# Servers, each in a process of its own


async def gateway_server(control: Any, *, members: int) -> None:
    """Run the gateway with its default configuration, logs included."""
    config = space_of(members)
    book = TokenBook.generate(config)
    state = Path(os.environ["BENCHMARK_STATE"])
    async with serve_gateway(config, tokens=book, state=state) as gateway:
        control.send(gateway.port)
        await anyio.sleep_forever()


class Bare(asyncio.Protocol):
    """Connection of a member to the floor's server."""

    def __init__(self, everybody: "list[asyncio.Transport]", framed: bytes) -> None:
        self.everybody = everybody
        self.framed = framed
        self.handshake = b""
        self.is_open = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.is_open:
            framed = self.framed
            for transport in self.everybody:
                transport.write(framed)
            return
        self.handshake += data
        if b"\r\n\r\n" in self.handshake:
            key = self.handshake.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0]
            accept = base64.b64encode(hashlib.sha1(key + ACCEPT_KEY).digest())
            head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            assert self.transport is not None
            self.transport.write(head + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
            self.everybody.append(self.transport)
            self.is_open = True


class Least(Bare):
    """Does the least for an envelope, then writes it to the sockets."""

    descriptors: ClassVar[list[int]] = []
    may = CapabilitySet([{"kind": "chat"}])
    log = SpaceLog(epoch="least", bounds=Bounds(10_000, 10**8))

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            super().data_received(data)
            self.descriptors[:] = [one.get_extra_info("socket").fileno() for one in self.everybody]
            return
        complete = decode_complete(data[8:], 65_536)  # the mask is zero
        assert complete is not None
        envelope, encoded = complete
        assert self.may.match(envelope) is not None
        self.log.stage(encoded, sender=envelope.sender, id=envelope.id, at=0.0)
        batch = self.log.seal()
        self.log.write(batch)
        self.log.publish(batch)
        framed = frame_json(encoded)
        for descriptor in self.descriptors:
            os.write(descriptor, framed)


async def floor_server(control: Any, connection: type[Bare]) -> None:
    """Run the floor's server, which only writes, or the one that does the least."""
    everybody: list[asyncio.Transport] = []
    framed = frame_message(message(0))
    server = await asyncio.get_running_loop().create_server(lambda: connection(everybody, framed), "127.0.0.1", 0)
    control.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def run_server(control: Any, kind: str, members: int) -> None:
    """Run a server process."""
    keep_to_core(0)
    answer_requests(control)
    options = {"use_uvloop": has_uvloop()}
    if kind in ("floor", "least"):
        anyio.run(floor_server, control, Least if kind == "least" else Bare, backend_options=options)
    else:

        async def serve() -> None:
            await gateway_server(control, members=members)

        anyio.run(serve, backend_options=options)


# Members: raw sockets that read and count


def stream_frame(index: int, _sender: int = 0) -> str:
    """A frame of the first stream, as long as the envelope."""
    head = f"#stream-1#{index:09d}"
    return head + "x" * (len(message(0)) - len(head))


def message(index: int, sender: int = 0) -> str:
    """A complete chat envelope, of the same length for every sender, that the gateway passes on unchanged."""
    return json.dumps(
        {
            "protocol": "mew/v0.4",
            "id": f"bench-{index:09d}",
            "ts": "2026-01-01T00:00:00.000Z",
            "from": f"m{sender}",
            "kind": "chat",
            "payload": {"text": TEXT[len(str(sender)) :]},
        },
        separators=(",", ":"),
    )


def masked(text: str) -> bytes:
    """A text frame of a client, with the mask zero, which is valid."""
    data = text.encode()
    size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + len(data).to_bytes(2)
    return b"\x81" + size + b"\0\0\0\0" + data


class Members:
    """Sockets of all members, read by one poller."""

    def __init__(self, port: int, count: int, *, joins: bool) -> None:
        self.poller = select.epoll()
        self.sockets: dict[int, socket.socket] = {}
        self.received: dict[int, int] = {}
        self.total = 0
        for index in range(count):
            self._connect(port, index, joins=joins)
        self.sender = next(iter(self.sockets.values()))

    def _connect(self, port: int, index: int, *, joins: bool) -> None:
        one = socket.create_connection(("127.0.0.1", port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(index.to_bytes(16)).decode()
        one.sendall(
            f"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += one.recv(65_536)
        one.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self.sockets[one.fileno()] = one
        self.received[one.fileno()] = 0
        self.poller.register(one.fileno(), select.EPOLLIN)
        if joins:
            join = {"type": "join", "space": SPACE, "participantId": f"m{index}", "token": token(index)}
            one.sendall(masked(json.dumps(join)))
            self.read_until(one.fileno(), 1)
        self.read_until_quiet(0)

    def read(self, seconds: float) -> bool:
        """Read available data. Returns whether there was any."""
        ready = self.poller.poll(seconds)
        for number, _ in ready:
            with_room = self.sockets[number]
            try:
                while got := len(with_room.recv(1 << 18)):
                    self.received[number] += got
                    self.total += got
            except BlockingIOError:
                pass
        return bool(ready)

    def read_until(self, number: int, size: int) -> None:
        """Read until one socket has received this many bytes in total."""
        while self.received[number] < size:
            if not self.read(10):
                raise TimeoutError("a member received no data in time")

    def read_until_quiet(self, seconds: float) -> None:
        """Read until nothing more arrives."""
        while self.read(seconds):
            pass

    def open_stream(self) -> None:
        """Open the sender's stream and wait until all members have been notified."""
        asked = {"kind": "stream/request", "payload": {"direction": "upload"}}
        self.sender.sendall(masked(json.dumps(asked)))
        self.read_until_quiet(0.5)

    def exchange(self, messages: int, written: Callable[[int, int], str] = message, burst: int = 1) -> None:
        """Send messages in bursts of one from each of `burst` members, when all have received the ones before."""
        size = len(frame_message(message(0))) * len(self.sockets)
        due, senders = self.total, list(self.sockets.values())[:burst]
        for index in range(0, messages, burst):
            due += size * burst
            for number, sender in enumerate(senders):
                sender.sendall(masked(written(index + number, number)))
            while self.total < due:
                if not self.read(10):
                    raise TimeoutError("members received no data in time")

    def close(self) -> None:
        """Close all connections."""
        for one in self.sockets.values():
            one.close()
        self.poller.close()


class Bench:
    """A running server with its members, for repeated rounds."""

    def __init__(self, port: int, control: Any, *, members: int, joins: bool, frames: bool = False) -> None:
        self.control = control
        self.written = stream_frame if frames else message
        self.members = Members(port, members, joins=joins)
        self.members.read_until_quiet(0.5)
        if joins and frames:
            self.members.open_stream()
        self.members.exchange(20, self.written)

    def cpu(self) -> float:
        """CPU seconds of the server so far."""
        return ask(self.control)

    def round(self, messages: int, burst: int = 1) -> Measured:
        """Run one round; `messages` is a multiple of `burst`."""
        before = self.cpu()
        self.members.exchange(messages, self.written, burst)
        return Measured(self.cpu() - before, messages * len(self.members.sockets))


class Compared(NamedTuple):
    """Medians of CPU microseconds per delivery, and of the ratio of gateway to floor by round."""

    floor: float
    burst_floor: float
    gateway: float
    ratio: float


def compare(members: int, deliveries: int, rounds: int, kind: str, *, frames: bool = False, burst: int = 1) -> Compared:
    """Let the floor's server and another one take turns."""
    messages = max(20, deliveries // members // burst * burst)
    whole = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    with server_process(run_server, "floor", members) as floor, server_process(run_server, kind, members) as gateway:
        keep_to_core(1)
        bare = Bench(*floor, members=members, joins=False, frames=frames)
        bench = Bench(*gateway, members=members, joins=kind != "least", frames=frames)
        seen: list[tuple[float, float, float]] = []
        for _ in range(rounds):
            alone = bare.round(messages).microseconds
            together = bare.round(messages, burst).microseconds if burst > 1 else alone
            seen.append((alone, together, bench.round(messages, burst).microseconds))
        bare.members.close()
        bench.members.close()
    if whole is not None:
        os.sched_setaffinity(0, whole)
    ratio = statistics.median(gateway / floor for floor, _, gateway in seen)
    alone, together, written = (statistics.median(figures) for figures in zip(*seen, strict=True))
    return Compared(alone, together, written, ratio)


class Ignored(OutboundChannel):
    """A channel that writes nowhere."""

    __slots__ = ()

    def write(self, framed: bytes) -> None:
        """Do nothing."""

    def write_frames(self, frames: Iterable[bytes], joined: bytes) -> None:
        """Do nothing."""

    def limit_buffer(self, max_bytes: int) -> None:
        """Do nothing."""

    def close(self, code: int, reason: str) -> None:
        """Do nothing."""

    def close_with_message(self, last: bytes, code: int, reason: str) -> None:
        """Do nothing."""


async def core_cost(members: int, *, is_cold: bool, rounds: int = 100) -> float:
    """CPU microseconds of one envelope inside the gateway: best round of 20 envelopes."""
    config, state = space_of(members), Path(os.environ["BENCHMARK_STATE"])
    writer = LogWriter()
    audit = AuditLog(state / "logs", SPACE, logging_options(config.gateway_logging), writer)
    service = SpaceService(
        config, TokenBook.generate(config), space_log=open_log(config, state), state=state, writer=writer, audit=audit
    )
    registry, connections = SpaceRegistry([service]), []
    for index in range(members):
        connection = Connection(registry)
        connection.attach(Ignored())
        join = {"type": "join", "space": SPACE, "participantId": f"m{index}", "token": token(index)}
        connection.receive(json.dumps(join).encode(), is_text=True)
        connections.append(connection)
    caches, best = bytearray(2 * 1024 * 1024), float("inf")
    for number in range(rounds):
        seconds = 0.0
        for index in range(20):
            data = message(number * 20 + index).encode()
            bytes(caches if is_cold else b"")
            begun = time.thread_time()
            connections[0].receive(data, is_text=True)
            seconds += time.thread_time() - begun
        best = min(best, seconds / 20 * 1e6)
    service.close()
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--deliveries", type=int, default=50_000, help="per round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--frames", action="store_true", help="measure frames of a stream instead of envelopes")
    parser.add_argument("--burst", type=int, default=1, help="messages sent at the same moment, 1 to 20 (default: 1)")
    parser.add_argument("--least", action="store_true", help="measure the least for an envelope instead of the gateway")
    parser.add_argument(
        "--durability",
        nargs="+",
        default=["memory", "flushed"],
        choices=["memory", "flushed", "synced"],
        help="where envelopes are kept before they are sent on; the difference is what keeping them costs",
    )
    parser.add_argument("--core", action="store_true", help="measure an envelope inside the gateway, without a network")
    options = parser.parse_args()
    if options.core:
        print(f"CPU per envelope in microseconds, without a network\n{'MEMBERS':>8} {'WARM':>8} {'COLD':>8}  HISTORY")
        for members, durability in itertools.product(options.members, options.durability):
            costs = []
            for is_cold in (False, True):
                with tempfile.TemporaryDirectory() as state:
                    os.environ |= {"BENCHMARK_STATE": state, "BENCHMARK_DURABILITY": durability}
                    costs.append(anyio.run(partial(core_cost, members, is_cold=is_cold)))
            print(f"{members:>8} {costs[0]:>8.1f} {costs[1]:>8.1f}  {durability}", flush=True)
        return
    kind = "least" if options.least else "gateway"
    if options.least:
        options.durability = ["memory"]
    if not 1 <= options.burst <= (1 if options.frames or options.least else 20):
        parser.error("--burst is 1 to 20, and expects neither --frames nor --least")
    if options.burst > min(options.members):
        parser.error(f"--burst: {options.burst} (expected at most the number of members)")
    loop = "uvloop" if has_uvloop() else "asyncio"
    logging = logging_options(space_of(1).gateway_logging)
    logs = {"envelopes": logging.envelope_history.enabled, "decisions": logging.capability_decisions.enabled}
    kept = [name for name, is_on in logs.items() if logging.enabled and is_on]
    what = "frames of a stream" if options.frames else "envelopes"
    print(f"CPU per delivery in microseconds; {what} of {len(frame_message(message(0)))} bytes; {loop}; ", end="")
    print(f"logs of {' and '.join(kept) or 'nothing'}; no rate limit; bursts of {options.burst}")
    column = f" {'BURST FLOOR':>12}" if options.burst > 1 else ""
    print(f"{'MEMBERS':>8} {'FLOOR':>8}{column} {kind.upper():>8} {'RATIO':>7} {'PER ENVELOPE':>13}  HISTORY")
    for members, durability in itertools.product(options.members, options.durability):
        with tempfile.TemporaryDirectory() as state:
            os.environ |= {"BENCHMARK_STATE": state, "BENCHMARK_DURABILITY": durability}
            found = compare(
                members, options.deliveries, options.rounds, kind, frames=options.frames, burst=options.burst
            )
        column = f" {found.burst_floor:>12.2f}" if options.burst > 1 else ""
        each = (found.gateway - found.floor) * members
        print(
            f"{members:>8} {found.floor:>8.2f}{column} {found.gateway:>8.2f} {found.ratio:>7.3f} {each:>13.1f}", end=""
        )
        print(f"  {durability}", flush=True)


if __name__ == "__main__":
    main()
