"""Measures what a read over HTTP costs the gateway, next to its trivial route.

    python -m benchmarks.reads [--requests 2000] [--rounds 5]

The gateway runs in a process of its own with its default configuration, on a history of 10,000 envelopes in SQLite.
One client sends one request after another over one connection. Figures are milliseconds of the gateway's CPU time
for each request, median of the rounds. The floor is `GET /health`: the same server, middleware and router, with an
answer of the same size. The exit code is 1 if a page of one message costs more than 0.3 ms beyond the floor.
"""

import argparse
import json
import socket
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
from mew_protocol.codec import read_draft
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import has_uvloop, serve_gateway

from benchmarks.server_process import answer_requests, ask, server_process

GOAL_MILLISECONDS = 0.3
HISTORY = 10_000

PATHS = {
    "floor (health)": "/health",
    "messages?limit=1": "/participants/ada/messages?limit=1",
    "messages?limit=1&since=": "/participants/ada/messages?limit=1&since={newest}",
    "messages?limit=100": "/participants/ada/messages?limit=100",
    "participants": "/participants",
    "board": "/spaces/bench/context",
}


def space() -> SpaceConfig:
    """A space whose reads are not limited."""
    people = {"ada": {"tokens": ["t"], "capabilities": [{"kind": "*"}]}, "bob": {}}
    limits = {"reads_per_second": 1e9, "envelopes_per_second": 1e9, "envelope_burst": 10**9}
    return parse_space(json.dumps({"space": {"id": "bench"}, "participants": people, "limits": limits}))


def run_server(control: Any, state: str) -> None:
    """Run a gateway with a full history."""

    async def serve() -> None:
        config = space()
        async with serve_gateway(config, tokens=TokenBook.load(config, Path(state)), state=Path(state)) as gateway:
            for number in range(HISTORY):
                draft = read_draft({"kind": "chat", "payload": {"text": f"message {number} " + "x" * 200}})
                await gateway.service.post(ParticipantId("ada"), draft)
            control.send((gateway.port, str(gateway.service.log.position)))
            answer_requests(control)
            await anyio.sleep_forever()

    anyio.run(serve, backend_options={"use_uvloop": has_uvloop()})


class Connection:
    """An HTTP connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, path: str) -> bytes:
        """Send a request and return the body of its answer."""
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._socket.recv(1 << 16)
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"{path}: {answer[:300]!r}")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(body) < size:
            body += self._socket.recv(1 << 16)
        return body


def main() -> int:
    """Print the table. Returns 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description="Measure the cost of reads over HTTP.")
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as state, server_process(run_server, state) as ((port, newest), control):
        costs = measure(control, port, newest, arguments.requests, arguments.rounds)
    floor = costs["floor (health)"]
    print(f"{'request':<26}{'ms':>8}{'beyond the floor':>18}")
    for name, cost in costs.items():
        print(f"{name:<26}{cost:>8.3f}{cost - floor:>18.3f}")
    missed = max(costs[name] for name in costs if "limit=1" in name and "100" not in name) - floor > GOAL_MILLISECONDS
    return int(missed)


def measure(control: Any, port: int, newest: str, requests: int, rounds: int) -> dict[str, float]:
    """Milliseconds of CPU time for one request of each sort, median of the rounds."""
    connection = Connection(port)
    epoch, _, number = newest.rpartition("-")
    before_newest = f"{epoch}-{int(number) - 1}"
    samples: dict[str, list[float]] = {name: [] for name in PATHS}
    for _ in range(rounds):
        for name, path in PATHS.items():
            path = path.format(newest=before_newest)
            connection.get(path)
            begun = ask(control)
            for _ in range(requests):
                connection.get(path)
            samples[name].append((ask(control) - begun) / requests * 1000)
    return {name: statistics.median(found) for name, found in samples.items()}


if __name__ == "__main__":
    sys.exit(main())
