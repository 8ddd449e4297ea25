"""Measures the memory of an idle connection in the gateway and in a bare `websockets` server.

    python -m benchmarks.idle [--connections 10000]

Server and clients run in separate processes. Only the server's resident memory counts: before the first connection, and
after all have joined and the server is idle. The gateway's connections are members of one space: each joins with the
bearer header of one of its people, who may hold many sockets, so that the result depends on connections, not on names.
The bare server keeps its connections open and reads. The benchmark needs about twice as many file descriptors as
connections; it raises the soft limit to the hard one.
"""

import argparse
import asyncio
import json
import logging
import resource
import socket
import time
from typing import Any

import anyio
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import has_uvloop, serve_gateway
from websockets.asyncio.server import ServerConnection, serve

from benchmarks.server_process import answer_requests, ask, server_process

PEOPLE = 100
PAGE_BYTES = resource.getpagesize()


def space_of(connections: int) -> SpaceConfig:
    """A space of a hundred people who may hold this many sockets together."""
    people = {f"m{index}": {"tokens": [f"t{index}"]} for index in range(PEOPLE)}
    limits = {"sockets_per_member": connections + PEOPLE, "ping_interval_seconds": 0}  # the clients do not answer pings
    return parse_space(json.dumps({"space": {"id": "idle"}, "participants": people, "limits": limits}))


def resident_bytes() -> int:
    """Resident memory of this process, as the kernel reports it."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - there is nothing to gain here
        return int(file.read().split()[1]) * PAGE_BYTES


async def gateway_server(control: Any, connections: int) -> None:
    """Run the gateway."""
    config = space_of(connections)
    async with serve_gateway(config, tokens=TokenBook.generate(config)) as gateway:
        control.send(gateway.port)
        await anyio.sleep_forever()


async def bare_server(control: Any, _connections: int) -> None:
    """Run `websockets` without compression, as in the gateway."""

    async def keep(connection: ServerConnection) -> None:
        async for _ in connection:
            pass

    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # clients hang up without a word at the end
    async with serve(keep, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        control.send(next(iter(server.sockets)).getsockname()[1])
        await asyncio.get_running_loop().create_future()


def run_server(control: Any, kind: str, connections: int) -> None:
    """Run a server process."""
    raise_limit()
    answer_requests(control, resident_bytes)
    body = gateway_server if kind == "gateway" else bare_server
    anyio.run(body, control, connections, backend_options={"use_uvloop": has_uvloop()})


def raise_limit() -> int:
    """Raise the limit of file descriptors to the hard limit. Returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connect(port: int, index: int) -> socket.socket:
    """Open a connection with a token in its header and complete the handshake."""
    one = socket.create_connection(("127.0.0.1", port), timeout=30)
    one.sendall(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        b"Authorization: Bearer t%d\r\n\r\n" % (index % PEOPLE)
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += one.recv(4096)
    if not answer.startswith(b"HTTP/1.1 101"):
        raise RuntimeError(answer[:100].decode())
    return one


def measure(kind: str, connections: int) -> tuple[float, float]:
    """Memory before any connection in MiB, and memory per idle connection in KiB."""
    with server_process(run_server, kind, connections) as (port, control):
        held = [connect(port, index) for index in range(PEOPLE)]  # so that what is made once is made
        before = settled(control)
        held += [connect(port, index) for index in range(connections)]
        after = settled(control)
        for one in held:
            one.close()
    return before / 2**20, (after - before) / connections / 2**10


def settled(control: Any) -> float:
    """Memory once it is stable, when every connection has joined."""
    last, quiet = -1.0, 0
    while quiet < 5:
        time.sleep(0.3)
        now = ask(control)
        quiet = quiet + 1 if abs(now - last) < 256 * 1024 else 0
        last = now
    return last


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=int, default=10_000)
    options = parser.parse_args()
    if raise_limit() < options.connections + PEOPLE + 100:
        parser.error(f"this machine allows {raise_limit():,} file descriptors a process; use fewer connections")
    print(f"{options.connections:,} idle connections, {'uvloop' if has_uvloop() else 'asyncio'}")
    print(f"{'SERVER':>12} {'BEFORE MiB':>11} {'KiB EACH':>9}")
    for kind in ("websockets", "gateway"):
        before, each = measure(kind, options.connections)
        print(f"{kind:>12} {before:>11.1f} {each:>9.1f}", flush=True)


if __name__ == "__main__":
    main()
