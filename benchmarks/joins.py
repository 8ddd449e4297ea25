"""Measures how long all members of a space need to come back after the gateway was killed.

    python -m benchmarks.joins [--members 1000] [--rounds 3] [--plain] [--batched] [--hold-seconds 30]

The gateway runs in a process of its own with its default configuration (logs, history in SQLite). All members join,
the gateway is killed, and a new one starts on the same folder and port. Time counts from the moment it listens until
every member has its welcome and is admitted. The members are raw sockets in one process that answer pings: each asks
for numbered delivery since its last position, as our client does, waits at most as long as our client, and tries again.
`--plain` measures members without numbers, `--batched` members that take presences in batches, as our client does.
With `--hold-seconds`, all have to stay joined for so long, and then get a chat that one of them sends.
"""

import argparse
import base64
import json
import multiprocessing
import os
import re
import select
import signal
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import psutil
from mew_settings.backoff import backoff_seconds
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import has_uvloop, serve_gateway

from mew_agent.participant.client import BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS, JOIN_TIMEOUT_SECONDS

SPACE = "bench"
LIMIT_SECONDS = 180.0
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
CHAT_ID = b'"id":"to-all"'
QUIET_BYTES = 100_000
"""What 2,000 members get in pings while nothing else happens is less."""
HANDSHAKE_END = b"\r\n\r\n"


def space_of(members: int) -> SpaceConfig:
    """A space whose members may chat."""
    people = {f"m{index}": {"tokens": [f"t{index}"], "capabilities": [{"kind": "chat"}]} for index in range(members)}
    limits = {"members": members}
    return parse_space(json.dumps({"space": {"id": SPACE}, "participants": people, "limits": limits}))


def run_server(control: Any, members: int, state: str, port: int) -> None:
    """Run a gateway until it is killed."""

    def answer_clock() -> None:
        while control.recv() == "cpu":
            control.send(time.process_time())

    async def serve() -> None:
        config = space_of(members)
        book = TokenBook.generate(config)
        async with serve_gateway(config, tokens=book, state=Path(state), port=port) as gateway:
            control.send(gateway.port)
            await anyio.sleep_forever()

    threading.Thread(target=answer_clock, daemon=True).start()
    anyio.run(serve, backend_options={"use_uvloop": has_uvloop()})


class Server:
    """A gateway process on one folder and port."""

    def __init__(self, members: int, state: str, port: int = 0) -> None:
        context = multiprocessing.get_context("spawn")
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=run_server, args=(theirs, members, state, port), daemon=True)
        self._process.start()
        self.port: int = self._control.recv()

    def cpu_seconds(self) -> float:
        """CPU time of the process so far."""
        self._control.send("cpu")
        seconds: float = self._control.recv()
        return seconds

    @property
    def rss_bytes(self) -> int:
        """Memory of the process."""
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def kill(self) -> None:
        """End it as a crash would."""
        os.kill(self._process.pid or 0, signal.SIGKILL)
        self._process.join()


def masked(data: bytes, opcode: int = TEXT) -> bytes:
    """A frame of a client, with the mask zero, which is valid."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + len(data).to_bytes(2)
    return bytes([0x80 | opcode]) + size + b"\0\0\0\0" + data


def frame_in(buffer: bytearray) -> tuple[int, bytes] | None:
    """Take the first whole frame of a gateway out of a buffer: its opcode and content. None if there is none yet."""
    if len(buffer) < 2:
        return None
    size, head = buffer[1], 2
    if size >= 126:
        head = 4 if size == 126 else 10
        size = int.from_bytes(buffer[2:head])
    if len(buffer) < head + size:
        return None
    opcode, content = buffer[0] & 0xF, bytes(buffer[head : head + size])
    del buffer[: head + size]
    return opcode, content


class Member:
    """One raw member: its socket, and how far its join has come."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.socket: socket.socket | None = None
        self.buffer = bytearray()
        self.chats = 0
        self.is_upgraded = False
        self.is_joined = False
        self.position: str | None = None
        self.attempts = 0
        self.give_up_at = 0.0
        self.try_at = 0.0

    def connect(self, port: int) -> socket.socket:
        """Start to connect."""
        self.drop()
        one = socket.socket()
        one.setblocking(False)  # noqa: FBT003 - the standard library's signature
        one.connect_ex(("127.0.0.1", port))
        self.socket = one
        self.give_up_at = time.monotonic() + JOIN_TIMEOUT_SECONDS
        return one

    def drop(self) -> None:
        """Forget the connection."""
        if self.socket is not None:
            self.socket.close()
        self.socket, self.buffer, self.is_upgraded, self.is_joined = None, bytearray(), False, False

    def retry_later(self, seconds: float | None = None) -> None:
        """Try again after the client's delay, or after the gateway's."""
        self.drop()
        self.attempts += 1
        jitter = (self.index * 7919 % 1000) / 1000
        own_seconds = backoff_seconds(self.attempts, BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS, jitter)
        self.try_at = time.monotonic() + (own_seconds if seconds is None else seconds * (0.5 + jitter))


class Members:
    """All raw members, served by one poller."""

    def __init__(self, count: int, delivery: dict[str, Any] | None) -> None:
        self.members = [Member(index) for index in range(count)]
        self.delivery = delivery
        self.poller = select.epoll()
        self.by_number: dict[int, Member] = {}
        self.joined = 0
        self.received = 0

    def join_all(self, port: int, *, limit_seconds: float) -> float:
        """Join all; returns the seconds until the last was welcomed, or infinity."""
        begun = time.monotonic()
        for member in self.members:
            member.attempts, member.try_at = 0, begun
            member.drop()
        self.by_number.clear()
        self.joined = 0
        waiting = list(self.members)
        checked = 0.0
        while self.joined < len(self.members):
            now = time.monotonic()
            if now - begun > limit_seconds:
                return float("inf")
            if now - checked > 0.05:
                checked = now
                for member in self.members:
                    if member.socket is not None and not member.is_joined and now > member.give_up_at:
                        self._forget(member)
                        member.retry_later()
                waiting = [one for one in self.members if one.socket is None]
            for member in waiting:
                if member.socket is None and member.try_at <= now:
                    one = member.connect(port)
                    self.by_number[one.fileno()] = member
                    self.poller.register(one.fileno(), select.EPOLLOUT)
            self._serve(0.02)
        return time.monotonic() - begun

    def read_until_quiet(self) -> None:
        """Read until nothing more arrives for a second, pings aside."""
        received, quiet_since = self.received, time.monotonic()
        while time.monotonic() - quiet_since < 1.0:
            self._serve(0.1)
            if self.received - received > QUIET_BYTES:
                received, quiet_since = self.received, time.monotonic()

    def hold(self, seconds: float) -> int:
        """Answer pings for so long; returns how many connections were lost."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._serve(0.1)
        return len(self.members) - self.joined

    def chat_to_all(self) -> float:
        """Let the first member chat; returns the seconds until all have it, or infinity."""
        begun, sender = time.monotonic(), self.members[0].socket
        if sender is not None:
            sender.sendall(masked(b'{"kind":"chat",%s,"payload":{"text":"hi"}}' % CHAT_ID))
        while not all(member.chats for member in self.members):
            if time.monotonic() - begun > LIMIT_SECONDS:
                return float("inf")
            self._serve(0.1)
        return time.monotonic() - begun

    def close(self) -> None:
        """Close all connections."""
        for member in self.members:
            member.drop()
        self.poller.close()

    def _forget(self, member: Member) -> None:
        if member.socket is not None:
            self.by_number.pop(member.socket.fileno(), None)

    def _serve(self, seconds: float) -> bool:
        ready = self.poller.poll(seconds)
        for number, events in ready:
            member = self.by_number.get(number)
            if member is None or member.socket is None:
                continue
            try:
                if events & select.EPOLLOUT:
                    self._shake_hands(member, number)
                else:
                    self._read(member)
            except BlockingIOError:
                pass
            except OSError:
                was_joined = member.is_joined
                self._forget(member)
                member.retry_later()
                self.joined -= was_joined
        return bool(ready)

    def _shake_hands(self, member: Member, number: int) -> None:
        assert member.socket is not None
        if member.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError
        self.poller.modify(number, select.EPOLLIN)
        key = base64.b64encode(member.index.to_bytes(16)).decode()
        member.socket.sendall(
            f"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def _read(self, member: Member) -> None:
        assert member.socket is not None
        data = member.socket.recv(1 << 18)
        if not data:
            raise OSError
        self.received += len(data)
        member.buffer += data
        if not member.is_upgraded:
            if HANDSHAKE_END not in member.buffer:
                return
            if b" 101 " not in member.buffer:
                raise OSError
            member.is_upgraded, member.buffer = True, member.buffer.partition(HANDSHAKE_END)[2]
            join = {"type": "join", "space": SPACE, "participantId": f"m{member.index}", "token": f"t{member.index}"}
            if self.delivery is not None:
                since = {"since": member.position} if member.position else {}
                join |= {"delivery": {**self.delivery, **since}}  # type: ignore[dict-item]
            member.socket.sendall(masked(json.dumps(join).encode()))
        while (frame := frame_in(member.buffer)) is not None:
            self._receive(member, *frame)

    def _receive(self, member: Member, opcode: int, content: bytes) -> None:
        assert member.socket is not None
        if opcode == CLOSE:
            raise OSError
        if opcode == PING:
            member.socket.sendall(masked(content, PONG))
        elif member.is_joined:
            member.chats += CHAT_ID in content
        elif b'"system/welcome"' in content:
            if found := re.search(rb'"position":"([0-9a-f]+-\d+)"', content):
                member.position = found[1].decode()
            member.is_joined = True
            self.joined += 1
        elif found := re.search(rb'"retry_after_seconds":([0-9.]+)', content):
            self._forget(member)
            member.retry_later(float(found[1]))


def measure_sockets(
    count: int, state: str, delivery: dict[str, Any] | None, hold_seconds: float
) -> tuple[float, float, float]:
    """Kill a gateway; returns seconds until all are back, the new gateway's CPU seconds, and megabytes received."""
    server = Server(count, state)
    members = Members(count, delivery)
    first = members.join_all(server.port, limit_seconds=LIMIT_SECONDS)
    members.read_until_quiet()
    first_cpu = server.cpu_seconds()
    server.kill()
    server = Server(count, state, server.port)
    members.received = 0
    passed = members.join_all(server.port, limit_seconds=LIMIT_SECONDS)
    members.read_until_quiet()
    if hold_seconds:
        lost = members.hold(hold_seconds)
        reached = members.chat_to_all()
        print(f"{first:.2f} s to join first, with {first_cpu:.1f} s of the gateway's CPU;")
        print(f"{lost} lost in {hold_seconds:.0f} s; a chat reached all in {reached:.2f} s")
        print(f"gateway memory {server.rss_bytes >> 20} MiB")
    cpu_seconds = server.cpu_seconds()
    members.close()
    server.kill()
    return passed, cpu_seconds, members.received / 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="members without numbered delivery")
    parser.add_argument("--batched", action="store_true", help="members that take presences in batches")
    parser.add_argument("--hold-seconds", type=float, default=0.0, help="how long all have to stay joined afterwards")
    options = parser.parse_args()
    delivery: dict[str, Any] | None = None if options.plain else {}
    if options.batched:
        delivery = {"presence": "batched"}
    print(f"{options.members} members back after a kill")
    print(f"{'SECONDS':>8} {'GATEWAY CPU':>12} {'MEGABYTES':>10}")
    seen = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as state:
            passed, cpu, megabytes = measure_sockets(options.members, state, delivery, options.hold_seconds)
        seen.append(passed)
        print(f"{passed:>8.2f} {cpu:>12.2f} {megabytes:>10.1f}", flush=True)
    print(f"median {statistics.median(seen):.2f} s")


if __name__ == "__main__":
    main()
