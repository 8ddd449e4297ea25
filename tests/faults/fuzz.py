"""A real gateway process under invalid input, while two members keep talking.

Owns the connections that send what `fuzz_inputs` makes, and what must hold: the gateway serves, writes no traceback
and little else, its memory stays flat, the two members lose neither a chat nor their connection, and what people look
at (board, attention, proposals, metrics, the webhook) is answered and posted throughout.
"""

import itertools
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import anyio
import anyio.abc
import httpx2
from mew_protocol.envelope import Envelope

from mew_agent.participant.participant import Participant
from tests.faults import fuzz_inputs
from tests.faults.fuzz_inputs import FUZZER, TOKEN
from tests.faults.processes import GatewayProcess
from tests.support.ports import unused_ports
from tests.support.raw_socket import HANDSHAKE
from tests.support.waiting import PATIENCE_SECONDS

BATCH = 50
"""How many messages one connection sends in one write."""

LAST = b"the last frame"
"""What the last ping of a connection carries: when it comes back, the gateway has read everything before it."""

ANSWER_SECONDS = 0.5
"""How long a connection waits for the gateway to answer or end it; many invalid inputs leave it waiting for more."""

WARM_UP = 0.25
"""The part of the run after which memory is measured first."""

OUTPUT_BYTES = 256 * 1024
"""How much the gateway may write about bad input."""

GROWTH_BYTES = 48 * 1024 * 1024
"""How much its memory may grow after the warm-up: some 50,000 remembered ids fill up meanwhile."""

_READ = ("/participants", "/spaces/fuzz/context", "/spaces/fuzz/attention", "/spaces/fuzz/proposals", "/metrics")
"""What is read over HTTP while the input arrives."""

_SPACE = {
    "space": {"id": "fuzz"},
    "participants": {
        FUZZER: {"tokens": [TOKEN], "capabilities": [{"kind": kind} for kind in ("chat", "mcp/*", "reasoning/*")]},
        "witness": {"tokens": ["witness-token"], "capabilities": [{"kind": "*"}]},
        "listener": {"tokens": ["listener-token"], "capabilities": [{"kind": "*"}]},
    },
    "limits": {
        "envelopes_per_second": 10**6,
        "envelope_burst": 10**6,
        "history_envelopes": 1_000,
        "history_bytes": 4 * 1024 * 1024,
    },
    "gateway_logging": {"enabled": False},
}
_SPACE["participants"][FUZZER]["capabilities"] += [  # type: ignore[index]
    {"kind": kind}
    for kind in (
        *("stream/*", "capability/*", "space/invite", "space/kick", "participant/status", "participant/request-status"),
        *("participant/compact", "participant/compact-done", "participant/forget", "system/*"),
    )
]


@dataclass
class FuzzReport:
    """The figures of a run."""

    seed: int
    seconds: float
    inputs: int
    rss_before: int
    rss_after: int
    output_bytes: int
    witnessed: int
    reads: int
    posts: int

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.inputs} inputs in {self.seconds:.0f} s; "
            f"gateway memory {self.rss_before >> 20} MiB after the warm-up, "
            f"{self.rss_after >> 20} MiB at the end; it wrote {self.output_bytes} bytes; "
            f"{self.witnessed} chats of the witness arrived, {self.reads} reads were answered, "
            f"{self.posts} posts reached the webhook"
        )


class _Records(logging.Handler):
    """Collects what our own client logs as a failure."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class FuzzListener(Participant):
    """A member that records what the witness says."""

    def __init__(self, url: str) -> None:
        super().__init__(url, space="fuzz", id="listener", token="listener-token")
        self.texts: list[str] = []

    async def receive(self, envelope: Envelope) -> None:
        """Record a chat of the witness."""
        if envelope.kind == "chat" and envelope.sender == "witness":
            self.texts.append(str(envelope.body.get("text")))


class FuzzRun:
    """One run with a seed."""

    def __init__(self, seed: int, folder: Path, *, inputs: int, seconds: float) -> None:
        self.seed = seed
        (webhook_port,) = unused_ports(1)
        self._webhook_port = webhook_port
        attention = {"webhook": f"http://127.0.0.1:{webhook_port}/"}
        self.gateway = GatewayProcess(folder, json.dumps({**_SPACE, "attention": attention}))
        self._inputs_wanted = inputs
        self._seconds = seconds
        self._sent = 0
        self._spoken = 0
        self._reads = 0
        self._posts = 0
        self._rss_before = 0

    async def run(self) -> FuzzReport:
        """Run until all inputs are sent or the time is over. Raises `AssertionError` with the seed."""
        client_log = _Records()
        logging.getLogger("mew_agent").addHandler(client_log)
        try:
            await self.gateway.start()
            url = f"ws://127.0.0.1:{self.gateway.port}"
            async with (
                FuzzListener(url) as listener,
                Participant(url, space="fuzz", id="witness", token="witness-token") as witness,
            ):
                started = anyio.current_time()
                async with anyio.create_task_group() as tasks:
                    await tasks.start(self._receive_posts)
                    tasks.start_soon(self._talk, witness)
                    tasks.start_soon(self._read)
                    await self._send_everything(started)
                    with anyio.fail_after(PATIENCE_SECONDS):
                        while not self._posts:
                            await anyio.sleep(0.01)
                    tasks.cancel_scope.cancel()
                seconds = anyio.current_time() - started
                await witness.chat("the last one")
                with anyio.fail_after(PATIENCE_SECONDS):
                    while "the last one" not in listener.texts:
                        await anyio.sleep(0.01)
                rss_after = self.gateway.rss_bytes
                texts = [text for text in listener.texts if text.isdigit()]
                self._check(texts == [str(n) for n in range(1, len(texts) + 1)], f"the witness said {texts[-5:]}")
                self._check(len(texts) >= self._spoken, f"{self._spoken} chats confirmed, {len(texts)} arrived")
                self._check(
                    (witness.session.client.joins, listener.session.client.joins) == (1, 1), "a member had to reconnect"
                )
        finally:
            self.gateway.close()
            logging.getLogger("mew_agent").removeHandler(client_log)
        output = self.gateway.output
        self._check("Traceback" not in output, f"traceback:\n{output[max(0, output.find('Traceback') - 300) :][:9000]}")
        self._check(len(output) < OUTPUT_BYTES, f"{len(output)} bytes of output:\n{output[-3000:]}")
        self._check(not client_log.lines, f"our client failed: {client_log.lines[:3]}")
        grown = rss_after - self._rss_before
        self._check(grown < GROWTH_BYTES, f"memory grew by {grown >> 20} MiB to {rss_after >> 20} MiB")
        return FuzzReport(
            seed=self.seed,
            seconds=seconds,
            inputs=self._sent,
            rss_before=self._rss_before,
            rss_after=rss_after,
            output_bytes=len(output.encode()),
            witnessed=len(texts),
            reads=self._reads,
            posts=self._posts,
        )

    def _check(self, holds: bool, problem: str) -> None:
        assert holds, f"seed {self.seed}, after {self._sent} inputs: {problem}"

    async def _talk(self, witness: Participant) -> None:
        while True:
            await witness.chat(str(self._spoken + 1))
            self._spoken += 1
            await anyio.sleep(0.05)

    async def _read(self) -> None:
        """Read the space as people and monitoring do."""
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{self.gateway.port}",
            headers={"Authorization": "Bearer witness-token"},
            timeout=PATIENCE_SECONDS,
        ) as http:
            for path in itertools.cycle(_READ):
                answer = await http.get(path)
                self._check(answer.status_code == 200, f"GET {path}: {answer.status_code} {answer.text[:300]}")
                self._reads += 1
                await anyio.sleep(0.05)

    async def _receive_posts(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """The receiver of the webhook."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self._webhook_port)
        async with listener:
            task_status.started()
            await listener.serve(self._answer_post)

    async def _answer_post(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            self._posts += (await stream.receive()).startswith(b"POST / ")
            await stream.send(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

    async def _send_everything(self, started: float) -> None:
        async with anyio.create_task_group() as tasks:
            for worker in range(8):
                tasks.start_soon(self._send_some, Random(f"{self.seed} {worker}"), started)

    async def _send_some(self, random: Random, started: float) -> None:
        while self._sent < self._inputs_wanted and anyio.current_time() - started < self._seconds:
            choice = random.random()
            if choice < 0.55:
                await self._send_joined(random, self._messages(random))
            elif choice < 0.75:
                await self._send_joined(random, [fuzz_inputs.broken_frames(random)])
            elif choice < 0.9:
                await self._send_raw([fuzz_inputs.http_request(random) for _ in range(5)])
            else:
                await self._send_raw([fuzz_inputs.broken_handshake(random)])
            used = max(self._sent / self._inputs_wanted, (anyio.current_time() - started) / self._seconds)
            if not self._rss_before and used >= WARM_UP:
                self._rss_before = self.gateway.rss_bytes

    def _messages(self, random: Random) -> list[bytes]:
        make: Callable[[Random], bytes]
        frames = []
        for _ in range(BATCH):
            make = fuzz_inputs.stream_frame if random.random() < 0.1 else fuzz_inputs.mutated_envelope
            frames.append(fuzz_inputs.frame_of(make(random), opcode=random.choice((1, 1, 1, 2))))
        return frames

    async def _send_joined(self, random: Random, frames: list[bytes]) -> None:
        """Join and send, sometimes without joining, and often in pieces of any size."""
        join = json.dumps({"type": "join", "space": "fuzz", "participant_id": FUZZER, "token": TOKEN}).encode()
        if random.random() < 0.9:
            frames.insert(0, fuzz_inputs.frame_of(join))
            self._sent -= 1  # the join is valid
        leaves = random.random() < 0.2
        end = b"" if leaves else fuzz_inputs.frame_of(LAST, opcode=9)
        await self._send_raw([*frames, end], HANDSHAKE, pieces=random.randrange(1, 5), leave=leaves)
        self._sent -= 1  # the end is valid

    async def _send_raw(
        self, inputs: list[bytes], handshake: bytes = b"", *, pieces: int = 1, leave: bool = False
    ) -> None:
        """Send on a connection of its own, until the gateway ends it, or answers the last ping, or waits for more."""
        data = b"".join(inputs)
        size = len(data) // pieces + 1
        self._sent += len(inputs)
        async with (
            await anyio.connect_tcp("127.0.0.1", self.gateway.port) as stream,
            anyio.create_task_group() as tasks,
        ):
            with suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                if handshake:  # what comes with it is not read: a client has to wait for the answer
                    await stream.send(handshake)
                    await stream.receive()
                tasks.start_soon(_read_answers, stream, tasks.cancel_scope)
                for start in range(0, len(data), size):
                    await stream.send(data[start : start + size])
                    await anyio.sleep(0)
                if leave:
                    await stream.send_eof()
                await anyio.sleep(ANSWER_SECONDS)
            tasks.cancel_scope.cancel()


async def _read_answers(stream: anyio.abc.SocketStream, connection: anyio.CancelScope) -> None:
    """Read until the gateway ends the connection or answers the last ping."""
    end = b""
    with suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while LAST not in end:
            end = end[-len(LAST) :] + await stream.receive()
    connection.cancel()


async def run_fuzz(seed: int, folder: Path, *, inputs: int = 100_000, seconds: float = 3600.0) -> FuzzReport:
    """Send so many inputs, for so long at most. Raises `AssertionError` with the seed."""
    return await FuzzRun(seed, folder, inputs=inputs, seconds=seconds).run()
