"""The real servers of a space under invalid and hostile input, while people use them.

Owns the people, and what must hold: no server ends or writes a traceback, each writes little and keeps
its memory, members lose neither a chat nor their connection nor a proposal, and whoever reads is answered soon. An
input that no server reads tests nothing, so the run also counts what arrived. `fuzz_inputs` makes the inputs,
`fuzz_attack` sends them, `fuzz_servers` runs the servers.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio import to_process
from mew_listener.freed_memory import PAUSE_SECONDS
from mew_protocol import kinds
from mew_protocol.envelope import Envelope

from mew_agent.errors import MewAgentError, NotAccepted, NotConnected
from mew_agent.participant.participant import Participant
from tests.faults.fuzz_attack import AttackPlan, run_attack
from tests.faults.fuzz_inputs import SPACE_ID, token_of
from tests.faults.fuzz_servers import AGENT, FuzzedSpace, Server, run_command
from tests.faults.processes import ProgramProcess
from tests.faults.witness import PromiseBroken, TooLate
from tests.support.ports import unused_ports
from tests.support.waiting import PATIENCE_SECONDS

READ_SECONDS = 3.0
"""Within which each reader is to be answered."""

WARM_UP = 0.25
"""The part of the run after which memory is measured first: by then, what is remembered has its size in a long run."""

OUTPUT_BYTES, OUTPUT_BYTES_A_MINUTE = 16 * 1024, 4 * 1024
"""How much a server may write about bad input: at its start, and then in each minute."""

GROWTH_BYTES = 64 * 1024 * 1024
"""How much the memory of a server may grow after the warm-up.

In a short run, remembered ids and the history fill up meanwhile. In a long one, small objects that stay keep apart the
memory of large messages that were freed.
"""

SETTLE_SECONDS = 2 * PAUSE_SECONDS
"""How long after the attack a server has to return memory: programs do so after each pause."""

SAMPLE_SECONDS = 5.0
"""How often the memory is read for its peak."""

ENOUGH = 100
"""How many inputs tell something about a share; of fewer, one has to arrive."""

ARRIVING = 0.25
"""The least share of the inputs for a server that it reads, beyond checks of form, token and path."""

MAX_PROBLEMS = 50

READ_PAUSE_SECONDS = 0.1
"""After each read of a server."""

_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("history", "-n", "200"),
    ("history", "--markdown"),
    ("proposals",),
)


@dataclass
class FuzzReport:
    """The figures of a run. `sent` and `arrived` count inputs by server; `slowest` is what a reader waited longest."""

    seed: int
    seconds: float = 0.0
    sent: Counter[str] = field(default_factory=Counter)
    arrived: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    slowest: dict[str, tuple[float, str]] = field(default_factory=dict)
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each process after the warm-up and at the end, in bytes."""
    peaks: dict[str, int] = field(default_factory=dict)
    """The largest memory that was seen of each process."""
    output_bytes: dict[str, int] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    witnessed: int = 0
    proposals: int = 0
    """How many honest proposals were listed unchanged until they were withdrawn."""
    posts: int = 0
    tool_pages: int = 0
    absences: int = 0
    """How often an agent could not be asked for receipts, because it or the asker joined again."""
    reconnects: int = 0
    """How often the two members joined again: their connection was lost, or this process was too late."""
    lag_seconds: float = 0.0
    """How late this process itself was, in all: it is no server's fault."""

    @property
    def inputs(self) -> int:
        """All inputs that were sent."""
        return self.sent.total()

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.inputs:,} inputs in {self.seconds:.0f} s, {self.arrived.total():,} arrived",
            f"  the fuzz itself was late by {self.lag_seconds:.1f} s in all, which is not counted for readers",
        ]
        for name, (before, after) in self.memory.items():
            seconds, path = self.slowest.get(name, (0.0, "-"))
            answers = ", ".join(f"{n} x {code}" for (one, code), n in self.statuses.most_common() if one == name)
            lines.append(
                f"  {name}: {self.arrived[name]:,} of {self.sent[name]:,} inputs arrived ({answers or '-'}); "
                f"{self.reads[name]:,} reads, the slowest {seconds:.2f} s ({path}); "
                f"memory {before >> 20} to {after >> 20} MiB, at most {self.peaks.get(name, 0) >> 20}; "
                f"wrote {self.output_bytes.get(name, 0):,} bytes"
            )
        seconds, words = self.slowest.get("mew", (0.0, "-"))
        lines.append(f"  commands: {self.reads['mew']:,}; mew {words} took {seconds:.2f} s of CPU more than before")
        lines.append(
            f"  {self.witnessed:,} chats of the witness arrived, {self.proposals:,} proposals stayed as they were, "
            f"{self.posts:,} posts reached the webhook, {self.tool_pages:,} pages of tools were offered, "
            f"{self.absences} requests for receipts found nobody, members reconnected {self.reconnects} times"
        )
        return "\n".join(lines)


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
        super().__init__(url, space=SPACE_ID, id="listener", token=token_of("listener"))
        self.texts: list[str] = []

    async def receive(self, envelope: Envelope) -> None:
        """Record a chat of the witness."""
        if envelope.kind == "chat" and envelope.sender == "witness":
            self.texts.append(str(envelope.body.get("text")))


class FuzzRun:
    """One run with a seed. `whole` attacks all servers, else only the gateway."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        inputs: int,
        seconds: float,
        whole: bool = False,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        (self._webhook_port,) = unused_ports(1)
        self.space = FuzzedSpace(folder, f"http://127.0.0.1:{self._webhook_port}/", whole=whole)
        self.report = FuzzReport(seed)
        self._folder = folder
        self._plan = AttackPlan(seed, inputs, seconds, folder, whole)
        self._read_seconds = read_seconds
        self._spoken = 0
        self._problems: dict[str, str] = {}
        """What did not hold: the first details of each."""

    async def run(self) -> FuzzReport:
        """Run until all inputs are sent or the time is over. Raises `PromiseBroken` with the seed."""
        client_log, report = _Records(), self.report
        logging.getLogger("mew_agent").addHandler(client_log)
        try:
            await self.space.start()
            url = f"ws://127.0.0.1:{self.space.gateway.port}"
            async with (
                FuzzListener(url) as listener,
                Participant(url, space=SPACE_ID, id="witness", token=token_of("witness")) as witness,
            ):
                usual: dict[tuple[str, ...], float] = {
                    words: (await run_command(self._folder, self.space, *words))[0] for words in _COMMANDS
                }
                started = anyio.current_time()
                async with self._people(witness, usual):
                    await self._attack()
                    with anyio.fail_after(PATIENCE_SECONDS):
                        while not all(
                            (
                                report.posts,
                                report.proposals,
                                report.reads["mew"],
                                report.reads[AGENT] or not self._plan.whole,
                            )
                        ):
                            await anyio.sleep(0.01)
                report.seconds = anyio.current_time() - started
                await witness.chat("the last one")
                with anyio.fail_after(PATIENCE_SECONDS):
                    while "the last one" not in listener.texts:
                        await anyio.sleep(0.01)
                self._check_members(witness, listener)
                for process in self.space.processes:
                    self._check(not process.has_ended, f"{process.name} ended", process.output)
                await self._settle()
        finally:
            self.space.close()
            logging.getLogger("mew_agent").removeHandler(client_log)
        self._check_servers()
        self._check(not client_log.lines, "our client failed", "\n".join(client_log.lines[:3]))
        if found := "".join(f"\n- {problem}\n{details}" for problem, details in self._problems.items()):
            raise PromiseBroken(f"{report}{found}")
        self.refuse_slow_reads(self._read_seconds)
        return report

    def refuse_slow_reads(self, most_seconds: float) -> None:
        """Raise `TooLate` if a reader waited longer."""
        slow = {name: one for name, one in self.report.slowest.items() if one[0] > most_seconds}
        if slow:
            lines = (f"{name}: {path} took {seconds:.1f} s" for name, (seconds, path) in slow.items())
            raise TooLate("\n- ".join((str(self.report), *lines)))

    # -- what must hold ----------------------------------------------------------------------------------

    def _check(self, holds: bool, problem: str, details: str = "") -> None:
        """Note a problem; the run goes on and finds others."""
        if not holds and problem not in self._problems and len(self._problems) < MAX_PROBLEMS:
            self._problems[problem] = details[-3_000:]

    def _check_members(self, witness: Participant, listener: FuzzListener) -> None:
        texts = [text for text in listener.texts if text.isdigit()]
        self.report.witnessed = len(texts)
        self._check(texts == [str(n) for n in range(1, len(texts) + 1)], f"the witness said {texts[-5:]}")
        self._check(len(texts) >= self._spoken, f"{self._spoken} chats confirmed, {len(texts)} arrived")
        self.report.reconnects = witness.session.client.joins + listener.session.client.joins - 2
        # A busy machine answers pings too late now and then. What a server ends, it says in its log.
        lost = [line for line in self.space.gateway.output.splitlines() if "witness" in line or "listener" in line]
        self._check(not lost, "the gateway disconnected a member", "\n".join(lost))

    def _check_servers(self) -> None:
        report = self.report
        for process in self.space.processes:
            output = process.output
            report.output_bytes[process.name] = len(output.encode())
        for process in self.space.processes:
            name, output = process.name, process.output
            begin = max(0, output.find("Traceback") - 300)
            self._check("Traceback" not in output, f"{name} wrote a traceback", output[begin:][:3_000])
            most = OUTPUT_BYTES + OUTPUT_BYTES_A_MINUTE * report.seconds / 60
            self._check(len(output) < most, f"{name} wrote {len(output):,} bytes, not at most {most:,.0f}", output)
            before, after = report.memory[name]
            self._check(after - before < GROWTH_BYTES, f"{name}: memory grew from {before >> 20} to {after >> 20} MiB")
        for server in self.space.servers:
            name = server.name
            sent, arrived = report.sent[name], report.arrived[name]
            self._check(
                arrived >= (sent * ARRIVING if sent >= ENOUGH else 1),
                f"only {arrived:,} of {sent:,} inputs for {name} arrived",
            )

    async def _attack(self) -> None:
        """Attack from another process, so that hundreds of attacking tasks do not delay people here."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._measure_memory)
            doors = {server.name: server.door for server in self.space.servers}
            outcome = await to_process.run_sync(run_attack, self._plan, doors, cancellable=True)
            tasks.cancel_scope.cancel()
        if not self.report.memory:
            self._note_memory()
        self.report.sent += outcome.sent
        self.report.arrived += outcome.arrived
        self.report.statuses += outcome.statuses
        self.report.tool_pages = outcome.tool_pages

    async def _measure_memory(self) -> None:
        await anyio.sleep(WARM_UP * self._plan.seconds)
        self._note_memory()
        while True:
            await anyio.sleep(SAMPLE_SECONDS)
            for one in self._running():
                self.report.peaks[one.name] = max(self.report.peaks.get(one.name, 0), one.rss_bytes)

    def _note_memory(self) -> None:
        self.report.memory = {one.name: (one.rss_bytes, 0) for one in self._running()}

    async def _settle(self) -> None:
        """Read the memory at the end: of what is held, without what is about to be returned."""
        memory, names = self.report.memory, {one.name: one for one in self._running()}
        with anyio.move_on_after(SETTLE_SECONDS):
            while any(one.rss_bytes - memory[name][0] >= GROWTH_BYTES for name, one in names.items()):
                await anyio.sleep(0.5)
        for name, one in names.items():
            memory[name] = memory[name][0], one.rss_bytes

    def _running(self) -> list[ProgramProcess]:
        return [one for one in self.space.processes if not one.has_ended]

    # -- people ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _people(self, witness: Participant, usual: dict[tuple[str, ...], float]) -> AsyncIterator[None]:
        """Let people talk, propose, read and run commands during the block."""
        async with self._receive_posts(), anyio.create_task_group() as tasks:
            for server in self.space.servers:
                tasks.start_soon(self._read, server)
            tasks.start_soon(self._talk, witness)
            tasks.start_soon(self._propose, witness)
            if self._plan.whole:
                tasks.start_soon(self._ask_for_receipts, witness)
            tasks.start_soon(self._run_commands, usual)
            tasks.start_soon(self._note_own_lag)
            yield
            tasks.cancel_scope.cancel()

    async def _talk(self, witness: Participant) -> None:
        while True:
            try:
                await witness.chat(str(self._spoken + 1))
            except MewAgentError as error:
                self._check(False, f"a member could not send: {error!r:.300}", self.space.gateway.output)
                return
            self._spoken += 1
            await anyio.sleep(0.05)

    async def _propose(self, witness: Participant) -> None:
        """Propose a call, read it back for a while as approvers do, and withdraw it."""
        token = {"Authorization": f"Bearer {token_of('listener')}"}
        async with httpx2.AsyncClient(base_url=self.space.gateway.url, headers=token, timeout=PATIENCE_SECONDS) as http:
            while True:
                call = {"method": "tools/call", "params": {"name": "read", "arguments": {"path": self._spoken}}}
                proposal = await witness.send(kinds.MCP_PROPOSAL, call)
                self._plan.proposal_file.write_text(proposal.id)
                for _ in range(10):
                    found = await self._list_proposals(http)
                    shown = [one for one in found if one["id"] == proposal.id and one["from"] == "witness"]
                    is_same = [one["payload"] for one in shown] == [call]
                    self._check(
                        is_same, "the proposal of the witness was changed or closed", f"of {len(found)}: {shown}"
                    )
                    await anyio.sleep(0.1)
                await witness.send(kinds.MCP_WITHDRAW, {"reason": "no longer"}, correlation_id=(proposal.id,))
                self.report.proposals += 1

    async def _ask_for_receipts(self, witness: Participant) -> None:
        """Ask an agent for the receipt of a chat, as the sender of the chat does."""
        sent = await witness.chat("How high is the tide?", to=AGENT)
        while True:
            lag, begun = self.report.lag_seconds, anyio.current_time()
            try:
                found = await witness.receipts(AGENT, sent.id)
            except (NotConnected, NotAccepted):  # it or we join again
                self.report.absences += 1
            except MewAgentError as error:
                self._check(False, f"{AGENT} gave no receipt: {error!r:.300}")
            else:
                shown = [(one.id, one.participant, one.sender) for one in found]
                self._check(shown == [(sent.id, AGENT, "witness")], f"{AGENT} gave other receipts", f"{found}")
                seconds = anyio.current_time() - begun - (self.report.lag_seconds - lag)
                self._note_read(AGENT, seconds, kinds.PARTICIPANT_REQUEST_RECEIPTS)
            await anyio.sleep(READ_PAUSE_SECONDS)

    async def _list_proposals(self, http: httpx2.AsyncClient) -> list[dict[str, Any]]:
        """Read the proposals; again on another connection if the first was just closed, as browsers do."""
        problem: httpx2.HTTPError
        for _ in range(2):
            try:
                return list((await http.get(f"/spaces/{SPACE_ID}/proposals")).json()["proposals"])
            except httpx2.HTTPError as error:
                problem = error
        self._check(False, f"the gateway refused an approver: {problem!r}", self.space.gateway.output)
        return []

    async def _read(self, server: Server) -> None:
        """Use a server as people and monitoring do."""
        while True:
            lag, begun = self.report.lag_seconds, anyio.current_time()
            try:
                path = await server.ask()
            except (httpx2.HTTPError, AssertionError) as error:
                self._check(False, f"{server.name} refused a reader: {error!r:.300}", server.process.output)
                path = "refused"
            self._note_read(server.name, anyio.current_time() - begun - (self.report.lag_seconds - lag), path)
            await anyio.sleep(READ_PAUSE_SECONDS)

    async def _run_commands(self, usual: dict[tuple[str, ...], float]) -> None:
        while True:
            for words in _COMMANDS:
                seconds, code, printed = await run_command(self._folder, self.space, *words)
                self._check(code == 0, f"mew {' '.join(words)} ended with {code}", printed)
                self._note_read("mew", seconds - usual[words], " ".join(words))

    def _note_read(self, name: str, seconds: float, what: str) -> None:
        self.report.reads[name] += 1
        if seconds > self.report.slowest.get(name, (-math.inf, ""))[0]:
            self.report.slowest[name] = (seconds, what)

    async def _note_own_lag(self) -> None:
        while True:
            due = anyio.current_time() + 0.05
            await anyio.sleep_until(due)
            self.report.lag_seconds += max(0.0, anyio.current_time() - due - 0.01)

    @asynccontextmanager
    async def _receive_posts(self) -> AsyncIterator[None]:
        """The receiver of the webhook, during the block."""
        # Not anyio's listener: cancelling `sock_accept` while a connection arrives raises `InvalidStateError`.
        server = await asyncio.start_server(self._answer_post, "127.0.0.1", self._webhook_port)
        try:
            yield
        finally:
            server.close()

    async def _answer_post(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.report.posts += (await reader.read(64 * 1024)).startswith(b"POST / ")
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()


async def run_fuzz(
    seed: int,
    folder: Path,
    *,
    inputs: int = 100_000,
    seconds: float = 3600.0,
    whole: bool = False,
    read_seconds: float = READ_SECONDS,
) -> FuzzReport:
    """Send so many inputs, for so long at most. Raises `AssertionError` with the seed."""
    try:
        return await FuzzRun(seed, folder, inputs=inputs, seconds=seconds, whole=whole, read_seconds=read_seconds).run()
    except BaseExceptionGroup as group:
        found: BaseException = group
        while isinstance(
            found, BaseExceptionGroup
        ):  # the first that failed; the others were cancelled or follow from it
            found = found.exceptions[0]
        raise found from None
