"""Attackers of the servers of a space: connections that send what `fuzz_inputs` makes, and count what arrives.

Runs in a process of its own. Does not know what must hold.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import anyio
import anyio.abc
import websockets
from mew_protocol import kinds

from tests.faults import fuzz_inputs
from tests.faults.fuzz_inputs import FUZZERS, SPACE_ID, Door, token_of
from tests.support.raw_socket import HANDSHAKE

BATCH = 50
"""How many messages one connection sends in one write."""

WHOLE_BATCH, WHOLE_PAUSE_SECONDS = 10, 0.7
"""The same, and the pause after it, with all servers: each of ten programs reads every envelope that is accepted, and
what a machine cannot do at all says nothing about a fault."""

LARGE = 0.002
"""The part of messages that are large: each program of the space reads them."""

LAST = b"the last frame"
"""What the last ping of a connection carries: when it comes back, the gateway has read everything before it."""

ANSWER_SECONDS = 2.0
"""How long a connection waits for an answer or its end; many invalid inputs leave a server waiting for more."""

HELD, HELD_SECONDS = 100, 1.0
"""How many connections a flood opens at once and leaves idle, each time from another address, and how long."""

_TURNED_AWAY = frozenset({401, 403, 404, 405, 408, 413, 414, 421, 429, 431, 503})
"""Statuses of requests that were refused before their body was read."""


_ENDED = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""What a connection raises that the server has ended."""

_REQUESTS = (fuzz_inputs.http_request, fuzz_inputs.hostile_request, fuzz_inputs.tiny_chunks)


_SESSION = re.compile(rb"mcp-session-id: ([!-~]{1,200})\r\n", re.IGNORECASE)


@dataclass(frozen=True)
class AttackPlan:
    """What an attack does: so many inputs, for so many seconds at most. `whole`: on all servers."""

    seed: int
    inputs: int
    seconds: float
    folder: Path
    whole: bool

    @property
    def proposal_file(self) -> Path:
        """Where the id of the proposal is that attackers try to change."""
        return self.folder / "proposal"


@dataclass
class AttackOutcome:
    """How many inputs were sent and arrived, by server."""

    sent: Counter[str] = field(default_factory=Counter)
    arrived: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each server answered a request with each status."""
    tool_pages: int = 0


class Attack:
    """One attack on these servers."""

    def __init__(self, plan: AttackPlan, doors: Mapping[str, Door]) -> None:
        self.outcome = AttackOutcome()
        self._plan = plan
        self._doors = dict(doors)
        self._batch, self._pause_seconds = (WHOLE_BATCH, WHOLE_PAUSE_SECONDS) if plan.whole else (BATCH, 0.0)
        self._started = 0.0

    async def run(self) -> None:
        """Attack until the plan is done."""
        self._started = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._offer_tools)
            for worker, name in enumerate(FUZZERS[:-1]):
                tasks.start_soon(self._send_some, name, Random(f"{self._plan.seed} {worker}"))

    def _used(self) -> float:
        return max(
            self.outcome.sent.total() / self._plan.inputs, (anyio.current_time() - self._started) / self._plan.seconds
        )

    async def _send_some(self, name: str, random: Random) -> None:
        while self._used() < 1:
            server = random.choice(tuple(self._doors)) if random.random() < 0.6 else "gateway"
            choice = random.random()
            if server != "gateway" or choice < 0.15:
                make = random.choices(_REQUESTS, (67, 30, 3))[0]
                async with anyio.create_task_group() as tasks:
                    for _ in range(5):
                        tasks.start_soon(self._send_request, server, make(random, self._doors[server]))
            elif choice < 0.75:
                await self._send_joined(name, random, self._messages(random))
                await anyio.sleep(self._pause_seconds)
            elif choice < 0.95:
                await self._send_joined(name, random, [fuzz_inputs.broken_frames(random)])
            else:
                await self._exchange(server, fuzz_inputs.broken_handshake(random))
            if random.random() < 0.05:
                await self._hold(random, server)

    def _messages(self, random: Random) -> list[bytes]:
        frames = []
        for _ in range(self._batch):
            choice = random.random()
            if choice < LARGE:
                data = fuzz_inputs.large_envelope(random)
            elif choice < 0.1:
                data = fuzz_inputs.stream_frame(random)
            elif choice < 0.3:
                data = fuzz_inputs.hostile_envelope(random)
            elif choice < 0.4 and self._plan.proposal_file.exists():
                data = fuzz_inputs.forgery(random, self._plan.proposal_file.read_text())
            else:
                data = fuzz_inputs.mutated_envelope(random)
            frames.append(fuzz_inputs.frame_of(data, opcode=random.choice((1, 1, 1, 2))))
        return frames

    async def _send_joined(self, name: str, random: Random, frames: list[bytes]) -> None:
        """Join and send, sometimes without joining, and often in pieces of any size."""
        join = {"type": "join", "space": SPACE_ID, "participant_id": name, "token": token_of(name)}
        begin = fuzz_inputs.frame_of(json.dumps(join).encode()) if random.random() < 0.95 else b""
        leaves = random.random() < 0.2
        end = b"" if leaves else fuzz_inputs.frame_of(LAST, opcode=9)
        self.outcome.sent["gateway"] += len(frames)
        answer = await self._exchange(
            "gateway", begin + b"".join(frames) + end, HANDSHAKE, random.randrange(1, 5), leaves=leaves
        )
        answered = len(frames) if LAST in answer else min(len(frames), answer.count(b'"system/error"'))
        self.outcome.arrived["gateway"] += answered

    async def _send_request(self, server: str, request: bytes) -> None:
        self.outcome.sent[server] += 1
        answer = await self._exchange(server, request)
        status = answer[9:12] if answer.startswith(b"HTTP/1.") else b""
        self.outcome.statuses[server, status.decode("latin-1") or "none"] += 1
        self.outcome.arrived[server] += status.isdigit() and int(status) not in _TURNED_AWAY
        if (session := _SESSION.search(answer)) is not None:
            await self._use_session(server, session[1].decode())

    async def _use_session(self, server: str, session: str) -> None:
        """Call a tool with hostile texts in a session of MCP that a request has opened, and end it."""
        door = self._doors[server]
        call = replace(door, bodies=fuzz_inputs.MCP_CALLS)
        self.outcome.sent[server] += 1
        answer = await self._exchange(server, fuzz_inputs.hostile_request(Random(session), call, session=session))
        self.outcome.arrived[server] += answer.startswith(b"HTTP/1.1 2")
        await self._exchange(server, fuzz_inputs.end_of_session(door, session))

    async def _exchange(
        self,
        server: str,
        data: bytes,
        handshake: bytes = b"",
        pieces: int = 1,
        *,
        leaves: bool = False,
        seconds: float = ANSWER_SECONDS,
    ) -> bytes:
        """Send on a connection of its own, until the server ends it, answers, or waits for more. Returns the answer."""
        size, answer = len(data) // pieces + 1, bytearray()
        with suppress(*_ENDED):
            async with await anyio.connect_tcp("127.0.0.1", self._doors[server].port) as stream:
                if handshake:  # what comes with it is not read: a client has to wait for the answer
                    await stream.send(handshake)
                    await stream.receive()
                last = LAST if handshake else b"\r\n\r\n"
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_read_answer, stream, answer, last, tasks.cancel_scope)
                    with suppress(*_ENDED):  # here: what leaves the group would be an exception group
                        for start in range(0, len(data), size):
                            await stream.send(data[start : start + size])
                            await anyio.sleep(0)
                        if leaves:
                            await stream.send_eof()
                    await anyio.sleep(ANSWER_SECONDS)
                    tasks.cancel_scope.cancel()
        return bytes(answer)

    async def _hold(self, random: Random, server: str) -> None:
        """Open many connections from one address, send each the begin of a request or nothing, and leave them so."""
        address = f"127.0.0.{random.randrange(2, 250)}"

        async def hold(begin: bytes) -> None:
            with suppress(*_ENDED):
                async with await anyio.connect_tcp("127.0.0.1", self._doors[server].port, local_host=address) as stream:
                    await stream.send(begin)
                    await anyio.sleep(HELD_SECONDS)

        async with anyio.create_task_group() as tasks:
            for _ in range(HELD):
                tasks.start_soon(hold, fuzz_inputs.unfinished_request(random, self._doors[server]))

    async def _offer_tools(self) -> None:
        """Answer each `tools/list` with a huge page, and say again and again that the tools have changed."""
        name, random = FUZZERS[-1], Random(f"{self._plan.seed} tools")
        changed = {"kind": kinds.MCP_NOTIFICATION, "payload": {"method": "notifications/tools/list_changed"}}
        while self._used() < 1:
            with suppress(OSError, websockets.WebSocketException, TimeoutError):
                async with websockets.connect(f"ws://127.0.0.1:{self._doors['gateway'].port}", max_size=None) as socket:
                    join = {"type": "join", "space": SPACE_ID, "participant_id": name, "token": token_of(name)}
                    await socket.send(json.dumps(join))
                    while self._used() < 1:
                        with anyio.move_on_after(1) as wait:
                            data = await socket.recv()
                            message = json.loads(data) if data[:1] in ("{", b"{") else {}  # else a frame of a stream
                            if message.get("kind") == kinds.MCP_REQUEST and name in (message.get("to") or ()):
                                page = fuzz_inputs.tools_page(random)
                                answer = {
                                    "kind": kinds.MCP_RESPONSE,
                                    "to": [message["from"]],
                                    "payload": {"result": page},
                                }
                                await socket.send(json.dumps({**answer, "correlation_id": [message["id"]]}))
                                self.outcome.tool_pages += 1
                        if wait.cancelled_caught:
                            await socket.send(json.dumps(changed))


async def _read_answer(stream: anyio.abc.SocketStream, answer: bytearray, last: bytes, done: anyio.CancelScope) -> None:
    """Read until the server ends the connection, or has answered with `last`."""
    with suppress(*_ENDED):
        while last not in answer[-200_000:]:
            answer += await stream.receive()
    done.cancel()


def run_attack(plan: AttackPlan, doors: Mapping[str, Door]) -> AttackOutcome:
    """Attack until all inputs are sent or the time is over."""
    attack = Attack(plan, doors)
    anyio.run(attack.run)
    return attack.outcome
