"""A space under load while its links and processes break, by a seed.

Owns the members, the load and the schedule of faults. What must hold afterwards is checked by `witness`, from what
the members saw; `run_faults` raises `PromiseBroken` with the seed and the history.
"""

import asyncio
import json
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.to_thread
from mew_protocol import kinds
from mew_protocol.codec import StreamFrame, encode_frame
from mew_protocol.envelope import Envelope

from mew_agent.errors import GatewayError, MewAgentError, NotAccepted, NotConfirmed, NotConnected
from mew_agent.participant.gaps import HistoryGap, StreamGap
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RehearsalOptions, RehearsalServer, serve_rehearsal
from tests.faults.load import AgentProcess, HttpSender, JoinedProcess, MemberProcess
from tests.faults.processes import GatewayProcess
from tests.faults.witness import (
    ChatKey,
    DeliveryWitness,
    FrameWitness,
    PromiseBroken,
    QuestionWitness,
    SendOutcome,
    TooLate,
)
from tests.support.faulty_link import FaultyLink, faulty_link
from tests.support.waiting import until

SPACE_ID = "faults"
CLOSED_SECONDS = 60.0
"""How long the gateway may take to close what belonged to broken links."""

SETTLE_SECONDS = 240.0
"""A bound for busy machines: each agent may have several questions to answer, one after the other."""

LINK_FAULTS: Mapping[str, int] = {"fin": 3, "rst": 3, "byte": 6, "stall": 2, "dark": 1, "slow": 1}
PROCESS_FAULTS: Mapping[str, int] = {"kill": 4, "terminate": 2, "freeze": 2, "disk": 2, "clock": 2}
PROGRAM_FAULTS: Mapping[str, int] = {"kill agent": 6, "freeze agent": 2, "kill member": 2, "freeze member": 1}
MODEL_FAULTS: Mapping[str, Mapping[str, Any]] = {
    "model 500": {"status": 500},
    "model 429": {"status": 429, "retry_after_seconds": 0.2},
    "model cut": {"cut_after_chunks": 2},
    "model cut whole": {"cut_after_chunks": 1, "cut_style": "end_of_stream"},
    "model slow": {"chunk_delay_seconds": 0.5},
}
MODEL_AT_WORK: Mapping[str, Any] = {"chunk_delay_seconds": 0.01, "window_tokens": 4096}

MOST_UNANSWERED = 20
"""How many questions of a run wait for an answer at most."""

_CUTS = ("fin", "rst", "byte")


@dataclass(frozen=True)
class FaultPlan:
    """What a run does. It ends after `seconds`, or when all of `cuts`, `kills` and `agent_kills` have happened."""

    seed: int
    members: int = 6
    seconds: float | None = None
    cuts: int = 0
    kills: int = 0
    agent_kills: int = 0
    agents: int = 2
    member_processes: int = 1
    http_senders: int = 1
    sends_per_second: float = 8.0
    """Of each member, while nothing is broken."""
    durability: str = "flushed"
    link_faults: Mapping[str, int] = field(default_factory=lambda: LINK_FAULTS)
    process_faults: Mapping[str, int] = field(default_factory=lambda: PROCESS_FAULTS)
    program_faults: Mapping[str, int] = field(default_factory=lambda: PROGRAM_FAULTS)
    link_pause_seconds: float = 0.3
    """Mean pause between two faults of links."""
    process_pause_seconds: float = 2.0
    program_pause_seconds: float = 2.0

    def names(self) -> list[str]:
        """The ids of the members. Every third is a person, who may hold several sockets."""
        return [f"m{number}" for number in range(self.members)]

    def agent_names(self) -> list[str]:
        """The ids of the agents."""
        return [f"a{number}" for number in range(self.agents)]

    def process_names(self) -> list[str]:
        """The ids of members in processes of their own."""
        return [f"p{number}" for number in range(self.member_processes)]

    def http_names(self) -> list[str]:
        """The ids of senders by HTTP."""
        return [f"h{number}" for number in range(self.http_senders)]

    def space_yaml(self) -> str:
        """The space that the gateway serves."""
        programs = [name for number, name in enumerate(self.names()) if number % 3]
        programs += [*self.agent_names(), *self.process_names()]
        everyone = (*self.names(), *self.agent_names(), *self.process_names(), *self.http_names())
        people = {name: {"tokens": [name], "capabilities": [{"kind": "*"}]} for name in everyone}
        for name in programs:
            people[name] |= {"command": "true"}
        return json.dumps(
            {
                "space": {"id": SPACE_ID},
                "participants": people,
                "history": {"durability": self.durability},
                "limits": {"history_envelopes": 200_000, "history_bytes": 256 * 1024 * 1024},
                "gateway_logging": {"enabled": False},
            }
        )


@dataclass
class RunReport:
    """The figures that any run has."""

    seed: int
    seconds: float
    faults: Counter[str]
    outcomes: Counter[str]
    deliveries: int
    settle_seconds: float

    def __str__(self) -> str:
        faults, sends = (
            ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            for counts in (self.faults, self.outcomes)
        )
        return (
            f"seed {self.seed}: {self.seconds:.0f} s; faults: {faults}; sends: {sends}; {self.deliveries} deliveries; "
            f"settled in {self.settle_seconds:.1f} s"
        )


@dataclass
class FaultReport(RunReport):
    """The figures of a run with agents."""

    answers: int
    frames: int
    missed_frames: int
    gaps: int
    gateway_rss_bytes: int

    def __str__(self) -> str:
        return (
            f"{super().__str__()}; {self.answers} questions answered; {self.frames} frames, "
            f"{self.missed_frames} missed; {self.gaps} gaps; gateway {self.gateway_rss_bytes >> 20} MiB"
        )


class FaultMember(Participant):
    """A member that sends numbered chats and records what arrives."""

    def __init__(self, name: str, link: FaultyLink, run: "FaultRun") -> None:
        super().__init__(link.url, space=SPACE_ID, id=name, token=name, first_connect_seconds=60)
        self.link = link
        self._run = run
        self._arrived = run.witness.arrivals[name]
        self.last_status = 0
        self.on(HistoryGap)(self._note_gap)
        self.on(StreamGap)(self._note_stream_gap)

    async def receive(self, envelope: Envelope) -> None:
        """Record a chat, an answer of an agent, and the starts and ends of its reasonings."""
        questions = self._run.questions
        match envelope.kind:
            case kinds.CHAT if envelope.sender in self._run.agents:
                questions.answers[self.id].update(envelope.correlation_ids)
            case kinds.CHAT if not any(name in self._run.agents for name in envelope.addressees):
                sender, number, _ = str(envelope.body["text"]).split(" ", 2)
                self._arrived.append(ChatKey(sender, int(number)))
            case kinds.REASONING_START:
                questions.starts[self.id][envelope.id] += 1
            case kinds.REASONING_CONCLUSION:
                questions.conclusions[self.id][str(envelope.context)] += 1
            case _:
                pass

    async def _note_gap(self, gap: HistoryGap) -> None:
        self._run.witness.gaps[self.id] += 1
        self._run.note(f"{self.id} was told of a gap: {gap.reason} {gap.after} {gap.before}")

    async def _note_stream_gap(self, gap: StreamGap) -> None:
        self._run.frames.receive_gap(self.id, gap.stream_id, gap.missed)

    async def receive_frame(self, frame: StreamFrame) -> None:
        """Record a frame of another member; those of agents are no numbers."""
        if frame.stream_id in self._run.frames.sent:
            self._run.frames.receive(self.id, frame.stream_id, int(frame.data))

    async def keep_streaming(self, random: Random) -> None:
        """Write numbered frames to one stream after the other, each over one connection, until the run stops."""
        run, client = self._run, self.session.client
        while not run.is_stopping:
            await anyio.sleep(random.uniform(0, 1.0))
            with suppress(MewAgentError):
                connection = self.session.client.joins
                opening = await self.ask(
                    kinds.STREAM_REQUEST,
                    {"direction": "upload"},
                    to="gateway",
                    answer=kinds.STREAM_OPEN,
                    timeout_seconds=10,
                )
                stream = str(opening.body["stream_id"])
                with suppress(MewAgentError):
                    for number in range(random.randrange(100)):
                        run.frames.sent[stream] += 1
                        frame = encode_frame(stream, str(number))
                        await client.send_unconfirmed(frame, wait_seconds=2, only_on=connection)
                        await anyio.sleep(random.uniform(0, 0.1))
                await self.send(kinds.STREAM_CLOSE, {"stream_id": stream})

    async def keep_sending(self, random: Random) -> None:
        """Send one chat after the other, and now and then a status, until the run stops."""
        run, number = self._run, 0
        pause = 1.0 / run.plan.sends_per_second
        while not run.is_stopping:
            number += 1
            key = ChatKey(self.id, number)
            filler = "x" * random.choice((1, 20, 300, 300, 5_000, 60_000 if number % 20 == 0 else 10))
            run.witness.outcomes[key] = await self._outcome(
                self.send(
                    *(kinds.CHAT, {"text": f"{self.id} {number} {filler}"}),
                    to="m0",
                    wait_seconds=random.choice((3.0, 20.0, 60.0)),
                )
            )
            if number % 5 == 0:
                self.last_status = await send_status(self, number, run.note, before=self.last_status)
            await anyio.sleep(random.uniform(0, 2 * pause))

    async def keep_asking(self, random: Random) -> None:
        """Ask agents, as long as not too many questions wait for an answer, until the run stops."""
        run, agents = self._run, tuple(self._run.agents)
        while agents and not run.is_stopping:
            if len(run.questions.open()) < MOST_UNANSWERED:
                text = f"Question {len(run.questions.outcomes)} of {self.id}: what is water?"
                question = self.messenger.draft(kinds.CHAT, {"text": text}, to=(random.choice(agents),))
                run.questions.outcomes[question.id] = SendOutcome.UNKNOWN
                sending = self.messenger.send_envelope(question, wait_seconds=random.choice((3.0, 60.0)))
                run.questions.outcomes[question.id] = await self._outcome(sending)
            await anyio.sleep(random.uniform(0, 1.0))

    async def _outcome(self, sending: Awaitable[object]) -> SendOutcome:
        return await outcome_of(sending, lambda text: self._run.note(f"{self.id}: {text}"))


async def outcome_of(sending: Awaitable[object], note: Callable[[str], None]) -> SendOutcome:
    """Wait for a send and return how it ended. `note` receives why it is not confirmed."""
    try:
        await sending
    except NotConfirmed as error:
        note(str(error))
        return SendOutcome.UNKNOWN
    except NotConnected:
        return SendOutcome.NEVER_SENT
    except NotAccepted as error:
        note(str(error))
        return SendOutcome.REFUSED
    return SendOutcome.CONFIRMED


async def send_status(me: Participant, number: int, note: Callable[[str], None], *, before: int) -> int:
    """Send a numbered status. Returns the number of the last one that counts, -1 if that is unknown."""
    payload = {"tokens": number, "max_tokens": 10**6, "messages_in_context": number, "status": "active"}
    sending = me.send(kinds.PARTICIPANT_STATUS, payload, wait_seconds=60)
    match await outcome_of(sending, lambda text: note(f"{me.id}: {text}")):
        case SendOutcome.CONFIRMED:
            return number
        case SendOutcome.UNKNOWN:
            return -1
        case _:
            return before


class FaultRun:
    """One run of a plan."""

    def __init__(self, plan: FaultPlan, folder: Path) -> None:
        self.plan = plan
        self.gateway = GatewayProcess(folder, plan.space_yaml())
        self.witness = DeliveryWitness(plan.names())
        self.questions = QuestionWitness(plan.names())
        self.frames = FrameWitness(plan.names())
        self.members: list[FaultMember] = []
        self.agents: dict[str, AgentProcess] = {}
        self.processes: dict[str, MemberProcess] = {}
        self._links: dict[str, FaultyLink] = {}
        self._folder = folder
        self.faults: Counter[str] = Counter()
        self.is_stopping = False
        self._random = Random(plan.seed)
        self._started_at = 0.0

    def note(self, event: str) -> None:
        """Add an event to the history."""
        self.witness.note(anyio.current_time() - self._started_at, event)

    async def run(self) -> FaultReport:
        """Run the plan and check what was seen. Raises `PromiseBroken`."""
        self._started_at = anyio.current_time()
        tasks_before, files_before = len(asyncio.all_tasks()), open_files()
        try:
            await self.gateway.start()
            report = await self._run_members()
        except (GatewayError, TimeoutError) as error:
            raise self._broken([f"{type(error).__name__}: {error}"]) from error
        finally:
            self.gateway.close()
        problems = self.witness.violations() + self.questions.violations() + self.frames.violations()
        if self.witness.gaps:  # the history holds everything that a run sends
            problems.append(f"gaps: {dict(self.witness.gaps)}")
        problems += [f"leaked {n} tasks" for n in [len(asyncio.all_tasks()) - tasks_before] if n > 0]
        problems += [f"leaked {n} open files" for n in [open_files() - files_before] if n > 0]
        for process in (self.gateway, *self._programs):
            if (at := process.output.find("Traceback")) >= 0:
                problems.append(f"{process.name} wrote a traceback:\n{process.output[max(0, at - 500) : at + 5000]}")
        if problems:
            raise self._broken(problems)
        return report

    @property
    def _programs(self) -> tuple[JoinedProcess, ...]:
        return (*self.agents.values(), *self.processes.values())

    async def _run_members(self) -> FaultReport:
        async with AsyncExitStack() as stack:
            model, senders = await self._start(stack)
            files_with_members = self.gateway.open_files
            async with anyio.create_task_group() as tasks:
                for member in self.members:
                    tasks.start_soon(member.keep_sending, Random(f"{self.plan.seed} {member.id}"))
                    tasks.start_soon(self._watch, member)
                for member in self.members[:3]:
                    tasks.start_soon(member.keep_asking, Random(f"{self.plan.seed} {member.id} asks"))
                    tasks.start_soon(member.keep_streaming, Random(f"{self.plan.seed} {member.id} streams"))
                for sender in senders:
                    tasks.start_soon(sender.run, lambda: self.is_stopping, 1.0 / self.plan.sends_per_second)
                await self._break_things(model)
                self.is_stopping = True
                self.note("all faults are over")
                for process in self.processes.values():
                    process.kill()
                over_at = anyio.current_time()
                with anyio.move_on_after(SETTLE_SECONDS) as waiting:
                    await until(self._is_settled, every_seconds=0.1)
                settled = anyio.current_time() - over_at
                with anyio.move_on_after(CLOSED_SECONDS) as closing:  # a dark link is noticed in ten seconds
                    await until(lambda: self.gateway.open_files <= files_with_members + 3, every_seconds=0.1)
                tasks.cancel_scope.cancel()
            # Once all agreed; a status that a member was sending when it was cancelled may have reached only the board.
            problems = await self._states() if waiting.cancelled_caught else []
            if waiting.cancelled_caught:
                problems.append(
                    f"not settled after {SETTLE_SECONDS:.0f} s; no answer to {sorted(self.questions.open())}"
                )
                problems += [f"{agent.name}: {agent.output[-2000:]}" for agent in self.agents.values()]
            problems += self.witness.violations() + self.questions.violations()
            if closing.cancelled_caught:  # not counted again: reading the states opened files, too
                late = f"the gateway has {self.gateway.open_files} open files, {files_with_members} before"
                raise self._broken([*problems, late], PromiseBroken if problems else TooLate)
            if problems:
                raise self._broken(problems)
            return self._report(settled)

    async def _start(self, stack: AsyncExitStack) -> tuple[RehearsalServer, list[HttpSender]]:
        """Start everything that sends, each over a link of its own, and the model."""
        plan, folder = self.plan, self._folder
        model = await stack.enter_async_context(serve_rehearsal(RehearsalOptions.model_validate(MODEL_AT_WORK)))
        for name in (*plan.names(), *plan.agent_names(), *plan.process_names(), *plan.http_names()):
            self._links[name] = await stack.enter_async_context(faulty_link(self.gateway.port))
        for name in plan.agent_names():
            self.agents[name] = AgentProcess(name, folder, self._links[name].url, SPACE_ID, model.base_url)
        for name in plan.process_names():
            self.processes[name] = MemberProcess(name, folder, self._links[name].url, SPACE_ID)
        for name in plan.names():
            self.members.append(await stack.enter_async_context(FaultMember(name, self._links[name], self)))
        for program in self._programs:
            stack.callback(program.close)
            program.start()
        await self._until_joined()
        return model, [HttpSender(name, self._links[name], self.witness.outcomes) for name in plan.http_names()]

    async def _until_joined(self) -> None:
        """Wait until every member and program is here."""
        names = {program.name for program in self._programs}
        with anyio.fail_after(SETTLE_SECONDS):
            while not names <= set(self.members[0].peers):
                await anyio.sleep(0.05)

    def _revive(self) -> None:
        """Start programs again that could not connect for too long, as `mew up` does."""
        for program in self._programs:
            if program.has_ended and not (self.is_stopping and program.name in self.processes):
                self.note(f"{program.name} ended by itself")
                program.start()

    async def _keep_programs_running(self) -> None:
        while True:
            self._revive()
            await anyio.sleep(0.5)

    async def _watch(self, member: FaultMember) -> None:
        """A member may not end on its own: none removed or replaced it."""
        await member.until_ended()
        if not self.is_stopping:
            try:
                await member.run_forever()
            except GatewayError as error:
                raise self._broken([f"{member.id} ended: {type(error).__name__}: {error}"]) from None

    # Faults

    async def _break_things(self, model: RehearsalServer) -> None:
        async with anyio.create_task_group() as until_all_stop:
            async with anyio.create_task_group() as tasks:
                until_all_stop.start_soon(self._break_model, model, Random(f"{self.plan.seed} model"))
                tasks.start_soon(self._break_links, Random(f"{self.plan.seed} links"))
                tasks.start_soon(self._break_processes, Random(f"{self.plan.seed} processes"))
                await self._break_programs(Random(f"{self.plan.seed} programs"))
                until_all_stop.start_soon(self._keep_programs_running)
            until_all_stop.cancel_scope.cancel()
        model.options = RehearsalOptions.model_validate(MODEL_AT_WORK)
        for link in self._links.values():
            link.cut_after_bytes = None
            link.release()

    def _schedule(
        self, random: Random, weights: Mapping[str, int], quota: int, counted: tuple[str, ...]
    ) -> Iterator[str]:
        """Fault after fault, until the time is over or `quota` of those that are counted have been given out."""
        if not weights:
            return
        started, given = anyio.current_time(), 0
        seconds = self.plan.seconds
        while (anyio.current_time() - started < seconds) if seconds is not None else (given < quota):
            name = random.choices(tuple(weights), tuple(weights.values()))[0]
            given += name in counted
            yield name

    async def _break_links(self, random: Random) -> None:
        for fault in self._schedule(random, self.plan.link_faults, self.plan.cuts, _CUTS):
            name = random.choice(tuple(self._links))
            self.faults[fault] += 1
            self.note(f"{fault} on the link of {name}")
            await self._break_link(fault, self._links[name], random)
            await anyio.sleep(random.uniform(0, 2 * self.plan.link_pause_seconds))

    async def _break_link(self, fault: str, link: FaultyLink, random: Random) -> None:
        match fault:
            case "fin":
                await link.cut("close")
            case "rst":
                await link.cut("reset")
            case "byte":
                link.cut_after_bytes = random.randrange(1, 8_000)
            case "stall" | "dark":
                (link.stall if fault == "stall" else link.go_dark)()
                await anyio.sleep(random.uniform(0.05, 1.0))
                if random.random() < 0.5:
                    await link.cut("reset" if random.random() < 0.5 else "close")
                link.release()
            case "slow":
                link.latency_seconds = random.uniform(0.05, 0.4)
                await link.cut("reset")
                await anyio.sleep(random.uniform(0.5, 2.0))
                link.latency_seconds = 0
            case _:
                raise ValueError(fault)

    async def _break_processes(self, random: Random) -> None:
        for fault in self._schedule(random, self.plan.process_faults, self.plan.kills, ("kill",)):
            await anyio.sleep(random.uniform(0, 2 * self.plan.process_pause_seconds))
            self.faults[fault] += 1
            self.note(f"{fault} of the gateway")
            await self._break_gateway(fault, random)
            self.note(f"{fault} of the gateway is over")

    async def _break_gateway(self, fault: str, random: Random) -> None:
        gateway = self.gateway
        match fault:
            case "kill" | "terminate":
                if fault == "kill":
                    gateway.kill()
                else:
                    await gateway.terminate()
                await anyio.sleep(random.uniform(0, 0.5))
                await gateway.start()
            case "freeze":
                gateway.freeze()
                await anyio.sleep(random.choice((0.05, 0.5, 2.0, 10.0 if random.random() < 0.3 else 0.2)))
                gateway.thaw()
            case "disk":
                gateway.fill_disk()
                await anyio.sleep(random.uniform(0.1, 2.0))
                if random.random() < 0.3:
                    gateway.kill()
                    await gateway.start()
                else:
                    gateway.free_disk()
            case "clock":
                gateway.set_clock(random.choice((-7200.0, -60.0, 0.0, 5.0, 3600.0)))
            case _:
                raise ValueError(fault)

    async def _break_programs(self, random: Random) -> None:
        for fault in self._schedule(random, self.plan.program_faults, self.plan.agent_kills, ("kill agent",)):
            await anyio.sleep(random.uniform(0, 2 * self.plan.program_pause_seconds))
            self._revive()
            how, _, whom = fault.partition(" ")
            candidates: tuple[JoinedProcess, ...] = tuple((self.agents if whom == "agent" else self.processes).values())
            if not candidates:
                continue
            program = random.choice(candidates)
            self.faults[fault] += 1
            self.note(f"{how} {program.name}")
            if how == "kill":
                program.kill()
                await anyio.sleep(random.choice((0.0, 0.0, random.uniform(0, 1.5))))
                program.start()
            else:
                program.freeze()
                await anyio.sleep(random.choice((0.05, 0.5, 2.0, 12.0 if random.random() < 0.3 else 0.2)))
                program.thaw()

    async def _break_model(self, model: RehearsalServer, random: Random) -> None:
        while True:
            await anyio.sleep(random.uniform(0, 6.0))
            fault = random.choice(tuple(MODEL_FAULTS))
            self.faults[fault] += 1
            self.note(fault)
            model.options = RehearsalOptions.model_validate({**MODEL_AT_WORK, **MODEL_FAULTS[fault]})
            await anyio.sleep(random.uniform(0.1, 1.0))
            model.options = RehearsalOptions.model_validate(MODEL_AT_WORK)

    # Afterwards

    async def _is_settled(self) -> bool:
        """Whether everything has arrived, every question is answered, and all know the same of each other."""
        self._revive()
        for process in self.processes.values():
            self.witness.outcomes |= dict(process.outcomes())
        is_answered = not self.questions.open() and self.questions.is_concluded()
        counts = {len(arrived) for arrived in self.witness.arrivals.values()}
        is_whole = len(counts) == 1 and not self.witness.missing()
        is_joined = all(member.is_joined for member in self.members)
        return is_whole and is_answered and is_joined and not await self._states()

    async def _states(self) -> list[str]:
        """Differences between what the gateway and each member know about the members."""
        names = set(self.plan.names())
        expected = {member.id: member.last_status for member in self.members if member.last_status > 0}
        board = await self._board()
        found = [
            f"the board has {board.get(name)} tokens for {name}, its last status said {tokens}"
            for name, tokens in expected.items()
            if board.get(name) != tokens
        ]
        for member in self.members:
            if missing := names - {member.id} - set(member.peers):
                found.append(f"{member.id} does not know {', '.join(sorted(missing))}")
            for name, tokens in expected.items():
                if name != member.id and name in member.peers and member.peers[name].context.tokens != tokens:
                    known = member.peers[name].context.tokens
                    found.append(f"{member.id} has {known} tokens for {name}, its last status said {tokens}")
        return found

    async def _board(self) -> dict[str, int | None]:
        request = urllib.request.Request(
            f"{self.gateway.url}/spaces/{SPACE_ID}/context", headers={"Authorization": f"Bearer {self.plan.names()[0]}"}
        )

        def get() -> Any:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)

        board = await anyio.to_thread.run_sync(get)
        return {entry["id"]: (entry.get("status") or {}).get("tokens") for entry in board["participants"]}

    def _report(self, settled: float) -> FaultReport:
        witness = self.witness
        return FaultReport(
            seed=self.plan.seed,
            seconds=anyio.current_time() - self._started_at,
            faults=self.faults,
            outcomes=Counter(outcome.value for outcome in witness.outcomes.values()),
            deliveries=sum(len(arrived) for arrived in witness.arrivals.values()),
            answers=len(next(iter(self.questions.answers.values()))),
            frames=sum(len(one) for streams in self.frames.received.values() for one in streams.values()),
            missed_frames=sum(missed.total() for missed in self.frames.missed.values()),
            gaps=witness.gaps.total(),
            settle_seconds=settled,
            gateway_rss_bytes=self.gateway.rss_bytes,
        )

    def _broken(self, problems: list[str], kind: type[PromiseBroken] = PromiseBroken) -> PromiseBroken:
        shown = problems[:30] + ([f"and {len(problems) - 30} more"] if len(problems) > 30 else [])
        return kind(
            "\n".join(
                [
                    f"seed {self.plan.seed}; {dict(self.faults)}",
                    *shown,
                    "history:",
                    *self.witness.history,
                    "gateway output:",
                    self.gateway.output[-3000:],
                ]
            )
        )


async def run_faults(plan: FaultPlan, folder: Path) -> FaultReport:
    """Run a plan with its files in an empty folder. Raises `PromiseBroken`."""
    with only_error():
        return await FaultRun(plan, folder).run()


@contextmanager
def only_error() -> Iterator[None]:
    """Raise `PromiseBroken` itself, and not in groups of task groups, unless other errors came with it."""
    try:
        yield
    except BaseExceptionGroup as group:
        broken, others = group.split(PromiseBroken)
        if broken is None or others is not None:
            raise
        found: BaseException = broken
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        raise found from None


def open_files() -> int:
    """Open file descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
