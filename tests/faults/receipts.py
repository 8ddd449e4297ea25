"""Read receipts of a space whose links, processes, models and contexts break, by a seed.

Owns the senders, the agents with their models, and the schedule of faults. Every receipt that is asked for or told is
compared with the prompts that the models got; see `receipt_witness`. `run_receipts` raises `PromiseBroken`.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.to_thread
from mew_protocol import kinds
from mew_protocol.envelope import Envelope, wire_timestamp
from mew_protocol.json_values import objects_at
from mew_protocol.payloads.read_receipts import MAX_RECEIPT_IDS, ReadReceipt
from mew_protocol.payloads.text_fit import Delivery
from mew_protocol.status_word import StatusWord
from mew_spaces.parts.jetstream.nats_server import NatsServer

from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.errors import MewAgentError
from mew_agent.participant.messenger import timestamp
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RehearsalOptions, RehearsalServer, serve_rehearsal
from tests.faults.harness import MODEL_AT_WORK, MODEL_FAULTS, only_error, outcome_of
from tests.faults.load import AgentProcess
from tests.faults.processes import GatewayProcess
from tests.faults.receipt_witness import MARK, Change, Chat, Claim, ReceiptWitness
from tests.faults.witness import HISTORY_LINES, PromiseBroken, SendOutcome
from tests.support.faulty_link import FaultyLink, faulty_link
from tests.support.waiting import until

SPACE_ID = "receipts"
SENDERS = ("s0", "s1", "s2", "s3", "s4")
AGENTS = ("a0", "a1", "a2")
EVENTS: Mapping[str, int] = {
    "cut": 50,
    "kill agent": 12,
    "kill gateway": 8,
    "restart agent": 5,
    "compact": 12,
    "overflow": 10,
    "shortened prompt": 6,
    "forget": 10,
    "clear": 4,
    "undo": 14,
    "restart by message": 3,
    "cancel": 10,
    "model fault": 8,
}
"""What happens during 1,000 chats. Agents also compact by themselves, at their threshold."""

MOST_OPEN = 12
"""How many chats wait for an answer of one agent at most."""

SMALL_WINDOW_TOKENS = 2_200
"""The window of a model that refuses what it took before."""

TOLD_BEFORE_SECONDS = 2.0
"""How long before it is sent an acknowledgement may have been made."""

TOOL_OWNER = SENDERS[0]
CALL_EVERY = 6
"""Which chats ask for a tool call."""

RESULT_TOKENS = 150
"""How much of a result an agent reads."""

FIRST_RESULT = 50_000
"""Above the numbers of chats: results have marks, too."""

MOST_SEARCHED = 200
"""How many messages are searched for at the end."""

SETTLE_SECONDS = 300.0
DECISION_SECONDS = 20.0
"""How long an agent may take to answer all chats that wait before it is told again how to deliver them."""

ASK_SECONDS = 30.0
SHOWN_WRONG = 8

DELIVERIES: Sequence[Delivery] = ("reference", "digest", "anyway", "cancel")
_WORDS = ("amber", "basalt", "cedar", "delta", "ember", "fjord", "garnet", "harbour", "indigo", "juniper")


@dataclass(frozen=True)
class ReceiptPlan:
    """What a run does: so many chats, and `EVENTS` in proportion."""

    seed: int
    chats: int = 1_000
    several: bool = False
    events: Mapping[str, int] = field(default_factory=lambda: EVENTS)

    def schedule(self, random: Random) -> list[str]:
        """Return all events in their order."""
        names = [name for name, count in self.events.items() for _ in range(max(1, round(count * self.chats / 1_000)))]
        random.shuffle(names)
        return names

    def space_yaml(self, nats_address: str | None) -> str:
        """The space that the gateways serve."""
        people: dict[str, dict[str, Any]] = {
            name: {"tokens": [name], "capabilities": [{"kind": "*"}]} for name in (*SENDERS, *AGENTS)
        }
        for name in (*SENDERS[3:], *AGENTS):
            people[name]["command"] = "true"
        space: dict[str, Any] = {
            "space": {"id": SPACE_ID, "would_fit": ("hold", "warn")[self.seed % 2]},
            "participants": people,
            "limits": {
                "history_envelopes": 200_000,
                "history_bytes": 256 * 1024 * 1024,
                "envelopes_per_second": 100_000,
                "envelope_burst": 100_000,
            },
            "gateway_logging": {"enabled": False},
        }
        if nats_address is not None:
            space["backplane"] = {"servers": [nats_address]}
        return json.dumps(space)


@dataclass
class ReceiptReport:
    """The figures of a run."""

    seed: int
    seconds: float
    events: Counter[str]
    compactions: Counter[str]
    witness: ReceiptWitness
    prompts: int
    chats: Counter[str]
    results: int

    def __str__(self) -> str:
        witness = self.witness
        lines = [
            f"seed {self.seed}: {self.seconds:.0f} s; {self.chats.total()} chats ({_counted(self.chats)})",
            f"events: {_counted(self.events)}",
            f"changes of contexts: {_counted(self.compactions)}; {self.prompts} prompts, {self.results} results",
            f"{len(witness.claims):,} receipts compared: {_counted(witness.states)}",
            f"unknown for a documented cause: {_counted(witness.unknown) or 'none'}",
            f"form not judged: {_counted(witness.not_judged) or 'none'}",
            f"{len(witness.wrong)} wrong",
        ]
        return "\n".join(lines)


class ReceiptMember(Participant):
    """A sender that records the receipts that it is told, and what agents announce."""

    def __init__(self, name: str, url: str, run: "ReceiptRun") -> None:
        super().__init__(url, space=SPACE_ID, id=name, token=name, first_connect_seconds=60)
        self._run = run
        if name == TOOL_OWNER:
            self.tool(run.measure)
        self.held: list[Envelope] = []
        """Acknowledgements of chats that an agent holds."""

    async def receive(self, envelope: Envelope) -> None:
        """Record what an agent sent, and the results that it gets."""
        if envelope.sender in AGENTS:
            self._run.hear(self, envelope)
        elif envelope.kind == kinds.MCP_RESPONSE and (found := MARK.search(str(envelope.body))) is not None:
            self._run.witness.sent(found[0], envelope.id, envelope.addressees[0], envelope.ts or "")


class ReceiptRun:
    """One run of a plan."""

    def __init__(self, plan: ReceiptPlan, folder: Path) -> None:
        self.plan = plan
        self.witness = ReceiptWitness(AGENTS)
        self.history: list[str] = []
        self._folder = folder
        self._random = Random(plan.seed)
        self._gateways: list[GatewayProcess] = []
        self._links: list[FaultyLink] = []
        self._models: dict[str, RehearsalServer] = {}
        self._agents: dict[str, AgentProcess] = {}
        self._members: list[ReceiptMember] = []
        self._events: Counter[str] = Counter()
        self._breaking: set[str] = set()
        """The agents whose processes the schedule has ended and starts again."""
        self._compacting: dict[str, str] = {}
        """When each agent began the compaction that it announced."""
        self._open: dict[str, set[str]] = {name: set() for name in AGENTS}
        """The chats without an answer, by agent."""
        self._allowed = 0
        """How many chats may have been sent by now, so that faults happen between chats."""
        self._sent = 0
        self._results = 0
        self._heard: set[str] = set()
        self._started_at = 0.0

    def note(self, event: str) -> None:
        """Add an event to the history."""
        self.history.append(f"{timestamp()[11:]}  {event}")

    async def run(self) -> ReceiptReport:
        """Run the plan and judge every receipt. Raises `PromiseBroken`."""
        self._started_at = anyio.current_time()
        async with AsyncExitStack() as stack:
            await self._start(stack)
            async with anyio.create_task_group() as watches:
                for name, model in self._models.items():
                    watches.start_soon(self._keep_prompts, name, model)
                watches.start_soon(self._keep_agents_running)
                async with anyio.create_task_group() as tasks:
                    for member in self._members:
                        tasks.start_soon(self._keep_sending, member, Random(f"{self.plan.seed} {member.id}"))
                    tasks.start_soon(self._break_things)
                problems = await self._settle()
                compactions = await self._compactions()
                await self._read_sessions()
                problems += await self._recall_problems()
                watches.cancel_scope.cancel()
        self.witness.judge()
        for process in (*self._gateways, *self._agents.values()):
            if (at := process.output.find("Traceback")) >= 0:
                problems.append(f"{process.name} wrote a traceback:\n{process.output[max(0, at - 500) : at + 5000]}")
        report = ReceiptReport(
            seed=self.plan.seed,
            seconds=anyio.current_time() - self._started_at,
            events=self._events,
            compactions=compactions,
            witness=self.witness,
            prompts=sum(len(one.prompts) for one in self.witness.agents.values()),
            chats=Counter(
                "answered" if one.id in self.witness.agents[one.agent].answers else "not answered"
                for one in self.witness.chats.values()
                if not one.is_result
            ),
            results=sum(one.is_result for one in self.witness.chats.values()),
        )
        problems += self.witness.wrong
        if problems:
            shown = [*problems[:SHOWN_WRONG], f"{len(problems)} problems", "history:", *self.history[-HISTORY_LINES:]]
            raise PromiseBroken("\n".join([str(report), *shown]))
        return report

    async def _start(self, stack: AsyncExitStack) -> None:
        address = None
        if self.plan.several:
            server = NatsServer(self._folder / "nats")
            stack.callback(server.stop)
            await anyio.to_thread.run_sync(server.start)
            address = server.address
        for number in range(2 if self.plan.several else 1):
            gateway = GatewayProcess(self._folder, self.plan.space_yaml(address), name=f"gateway-{number}")
            stack.callback(gateway.close)
            self._gateways.append(gateway)
            await gateway.start()
        for number, name in enumerate(AGENTS):
            options = {**MODEL_AT_WORK, "reply_tokens": 60, "summary_behaviour": ("extract", "quarter")[number % 2]}
            model = await stack.enter_async_context(serve_rehearsal(RehearsalOptions.model_validate(options)))
            settings: dict[str, Any] = {"context_token_limit": 4096, "together": 4 if number else None}
            settings["max_result_tokens"] = RESULT_TOKENS
            url = await self._url(stack)
            agent = AgentProcess(name, self._folder, url, SPACE_ID, model.base_url, **settings)
            stack.callback(agent.close)
            self._models[name], self._agents[name] = model, agent
            agent.start()
        for name in SENDERS:
            self._members.append(await stack.enter_async_context(ReceiptMember(name, await self._url(stack), self)))
        await until(self._has_joined, every_seconds=0.05)

    def _has_joined(self) -> bool:
        for agent in self._agents.values():
            if agent.has_ended:
                raise PromiseBroken(f"{agent.name} ended: {agent.output}")
        return set(AGENTS) <= set(self._members[0].peers)

    async def _url(self, stack: AsyncExitStack) -> str:
        """Return the addresses of all gateways, each over a link of its own."""
        links = [await stack.enter_async_context(faulty_link(gateway.port)) for gateway in self._gateways]
        self._links += links
        return ",".join(link.url for link in links)

    async def _keep_prompts(self, name: str, model: RehearsalServer) -> None:
        """Record every main request to a model; the model itself keeps the newest."""
        seen = Counter[str]()
        while True:
            await model.wait_until(lambda: bool(model.requests) and model.requests[-1].number > seen[name])
            for request in [one for one in model.requests if one.number > seen[name]]:
                seen[name] = request.number
                if not request.is_summary:
                    sent = objects_at(request.body, "messages")
                    first = 1 + request.left_out  # after the system prompt
                    messages, left_out = sent[first:], [str(one["content"]) for one in sent[1:first]]
                    said = [str(one["content"]) for one in messages if one["role"] == "user"]
                    results = [
                        (str(one["tool_call_id"]), str(one["content"])) for one in messages if one["role"] == "tool"
                    ]
                    self.witness.prompt(name, request, said, results, left_out)

    async def _keep_agents_running(self) -> None:
        while True:
            for agent in self._agents.values():
                if agent.has_ended and agent.name not in self._breaking:
                    self.note(f"{agent.name} ended by itself: {agent.output[-300:]}")
                    self.witness.agents[agent.name].kills.append(timestamp())
                    agent.start()
            await anyio.sleep(0.5)

    # -- what is said ----------------------------------------------------------------------------------

    def hear(self, member: ReceiptMember, envelope: Envelope) -> None:
        """Record what an agent sent to a member, or to everyone."""
        log, at = self.witness.agents[envelope.sender], envelope.ts or ""
        match envelope.kind:
            case kinds.CHAT_ACKNOWLEDGE if member.id in envelope.addressees:
                body = dict(envelope.body)
                if "receipt" in body and body["receipt"]["id"] in self.witness.chats:
                    receipt = ReadReceipt.model_validate(body["receipt"])
                    self.witness.claims.append(Claim(log.name, receipt, _earlier(at), at, "told"))
                if body.get("held") is True:
                    member.held.append(envelope)
                if StatusWord.read(body.get("status")).word == "refused":
                    self.witness.refused.update(envelope.correlation_ids)
                if StatusWord.read(body.get("status")).word in ("refused", "cancelled"):
                    self._open[log.name].difference_update(envelope.correlation_ids)
            case kinds.CHAT if envelope.body.get("needs_reply") is not False:  # otherwise it asks how to deliver
                for name in envelope.correlation_ids:
                    log.answers.setdefault(name, (envelope.id, at))
                self._open[log.name].difference_update(envelope.correlation_ids)
            case kinds.PARTICIPANT_STATUS if not envelope.addressees and envelope.id not in self._heard:
                self._heard.add(envelope.id)
                word = str(envelope.body.get("status"))
                if word.startswith("compacting"):
                    self._compacting[log.name] = at
                elif word.startswith(("compacted", "compaction_failed")):
                    log.changes.append(Change(self._compacting.pop(log.name, at), at, word))
            case _:
                pass

    def measure(self, number: int) -> str:
        """Measure something. Each result has a mark of its own."""
        self._results += 1
        mark, random = f"Q{FIRST_RESULT + self._results:05}", Random(f"{self.plan.seed} {number} {self._results}")
        readings = (
            f"Reading {place} of {mark} is {random.choice(_WORDS)} {place * 3}."
            for place in range(random.choice((1, 3, 90)))
        )
        text = " ".join((f"Decision: the station of {mark} is {random.randrange(10_000)}.", *readings))
        self.witness.expect(Chat("", TOOL_OWNER, "", mark, text, follows=False, is_result=True))
        return text

    async def _keep_sending(self, member: ReceiptMember, random: Random) -> None:
        """Send chats until all are sent; decide about those that an agent holds."""
        while self._sent < self.plan.chats:
            while member.held:
                held = member.held.pop()
                how, name = random.choice(DELIVERIES), held.correlation_ids[0]
                await self._outcome(member, member.deliver(held.sender, name, how))
                if how == "cancel":
                    self._open[held.sender].discard(name)
            agent = random.choice(AGENTS)
            if self._sent >= self._allowed or len(self._open[agent]) >= MOST_OPEN:
                await anyio.sleep(0.05)
                continue
            number, self._sent = self._sent, self._sent + 1
            await self._send(member, agent, number, random)
            await anyio.sleep(random.choice((0.0, 0.0, random.uniform(0, 1.0))))

    async def _send(self, member: ReceiptMember, agent: str, number: int, random: Random) -> None:
        mark = f"Q{number:05}"
        parts = random.choice((1, 2, 2, 3, 12, 150 if number % 7 == 0 else 4))
        sentences = [f"Decision: the port of {mark} is {random.randrange(10_000)}."]
        sentences += [f"Part {place} of {mark} is {random.choice(_WORDS)} {place * 7}." for place in range(1, parts)]
        if number % CALL_EVERY == 1:
            sentences.append(f'Call {TOOL_OWNER}__measure with {{"number": {number}}} for {mark}.')
        text, follows = " ".join(sentences), number % 2 == 0
        payload = {"text": text, **({"receipts": True} if follows else {})}
        draft = member.messenger.draft(kinds.CHAT, payload, to=(agent,))
        chat = Chat(draft.id, member.id, agent, mark, text, follows)
        self.witness.add(chat)
        self._open[agent].add(chat.id)
        if await self._outcome(member, member.messenger.send_envelope(draft, wait_seconds=60)) is SendOutcome.CONFIRMED:
            chat.confirmed_at = timestamp()
        else:
            self._open[agent].discard(chat.id)

    async def _outcome(self, member: ReceiptMember, sending: Awaitable[object]) -> SendOutcome:
        return await outcome_of(sending, lambda text: self.note(f"{member.id}: {text}"))

    async def _ask(self, agent: str) -> bool:
        """Ask an agent for the receipts of all messages that it was sent. Returns False if it did not answer."""
        member, is_whole = self._random.choice(self._members), True
        with anyio.move_on_after(ASK_SECONDS):
            while agent not in member.peers:
                await anyio.sleep(0.05)
        for sender in SENDERS:
            ids = [one.id for one in self.witness.chats.values() if (one.sender, one.agent) == (sender, agent)]
            for first in range(0, len(ids), MAX_RECEIPT_IDS):
                part, begun = ids[first : first + MAX_RECEIPT_IDS], timestamp()
                try:
                    receipts = await member.receipts(agent, *part, sender=sender, timeout_seconds=ASK_SECONDS)
                except MewAgentError as error:
                    self.note(f"{agent} gave no receipts: {type(error).__name__}")
                    is_whole = False
                    continue
                ended = timestamp()
                self.witness.claims += [Claim(agent, one, begun, ended, "asked") for one in receipts]
        return is_whole

    # -- what happens ----------------------------------------------------------------------------------

    async def _break_things(self) -> None:
        events = self.plan.schedule(self._random)
        for number, name in enumerate(events, start=1):
            self._allowed = round(self.plan.chats * number / (len(events) + 1))
            await until(lambda: self._sent >= self._allowed, every_seconds=0.02)
            agent = self._random.choice(AGENTS)
            self._events[name] += 1
            self.note(f"{name}: {agent}")
            await self._break(name, agent, self._random)
            self.note(f"{name}: {agent} is over")
            await self._ask(agent)
        self._allowed = self.plan.chats

    async def _break(self, name: str, agent: str, random: Random) -> None:
        member, log = random.choice(self._members), self.witness.agents[agent]
        await until(lambda: agent in member.peers, every_seconds=0.05)
        match name:
            case "cut":
                link = random.choice(self._links)
                if random.random() < 0.4:
                    link.cut_after_bytes = random.randrange(1, 4_000)
                else:
                    await link.cut(random.choice(("reset", "close")))
            case "kill agent" | "restart agent":
                process, begun = self._agents[agent], timestamp()
                self._breaking.add(agent)
                if name == "kill agent":
                    process.kill()
                else:
                    await process.terminate()
                log.kills += [begun] if name == "kill agent" else [begun, timestamp()]
                await anyio.sleep(random.choice((0.0, 0.5)))
                process.start()
                self._breaking.remove(agent)
            case "kill gateway":
                gateway = random.choice(self._gateways)
                gateway.kill()
                await anyio.sleep(random.choice((0.0, 0.5)))
                await gateway.start()
            case "overflow" | "shortened prompt":
                await self._shrink(self._models[agent], shortens_prompts=name == "shortened prompt")
            case "model fault":
                model, before = self._models[agent], self._models[agent].options
                model.change(**MODEL_FAULTS[random.choice(tuple(MODEL_FAULTS))])
                await anyio.sleep(random.uniform(0.2, 1.5))
                model.options = before
            case "cancel":
                if waiting := [self.witness.chats[one] for one in self._open[agent]]:
                    chat = random.choice(waiting)
                    by = next(one for one in self._members if one.id == chat.sender)
                    draft = by.messenger.draft(kinds.CHAT_CANCEL, {}, to=(agent,), correlation_id=(chat.id,))
                    await self._outcome(by, by.messenger.send_envelope(draft))
                    self._open[agent].discard(chat.id)
            case _:
                await self._control(name, agent, member, random)

    async def _shrink(self, model: RehearsalServer, *, shortens_prompts: bool) -> None:
        """Let a model have a smaller window, until it has refused or shortened one prompt, or for some seconds."""
        before, seen = model.options, model.requests[-1].number if model.requests else 0
        model.change(window_tokens=SMALL_WINDOW_TOKENS, shortens_prompts=shortens_prompts)
        with anyio.move_on_after(5):
            await model.wait_until(
                lambda: any(one.status == 400 or one.left_out for one in model.requests if one.number > seen)
            )
            await anyio.sleep(0.3)
        model.options = before

    async def _control(self, name: str, agent: str, member: ReceiptMember, random: Random) -> None:
        """Ask an agent to change its context, and note between which times it did."""
        asking: dict[str, Any] = {
            "compact": lambda: member.compact(
                agent, target_tokens=random.choice((None, 600, 1_500)), timeout_seconds=60
            ),
            "forget": lambda: member.forget(agent, random.choice((None, 2, 6)), newest=random.random() < 0.3),
            "clear": lambda: member.clear(agent),
            "undo": lambda: member.undo(agent, timeout_seconds=60),
            "restart by message": lambda: member.reset(agent),
        }
        begun = timestamp()
        try:
            outcome = await asking[name]()
            ended = timestamp()
            self.note(f"{name}: {outcome!r:.200}")
        except MewAgentError as error:
            self.note(f"{name}: {type(error).__name__}: {error}")
            ended = wire_timestamp(datetime.now(UTC) + timedelta(seconds=30))  # it may still do so
        self.witness.agents[agent].changes.append(Change(begun, ended, name))

    # -- afterwards ------------------------------------------------------------------------------------

    async def _settle(self) -> list[str]:
        """Wait for all answers, then let each agent read one more chat after all receipts, so that it can be judged."""
        problems = []
        for link in self._links:
            link.cut_after_bytes = None
        self.note("all faults are over")
        with anyio.move_on_after(SETTLE_SECONDS) as waiting:
            while any(self._open.values()):
                # A chat may be held without its sender knowing it: the agent that said so was killed.
                for chat in [self.witness.chats[one] for ids in self._open.values() for one in ids]:
                    member = next(one for one in self._members if one.id == chat.sender)
                    await self._outcome(member, member.deliver(chat.agent, chat.id, "digest"))
                with anyio.move_on_after(DECISION_SECONDS):
                    while any(self._open.values()):
                        await anyio.sleep(0.1)
        if waiting.cancelled_caught:
            left = {self.witness.chats[one].mark: name for name, ids in self._open.items() for one in ids}
            problems.append(f"no answer after {SETTLE_SECONDS:.0f} s: {left}")
        for agent in AGENTS:
            for _ in range(2):
                with anyio.move_on_after(60):
                    while not await self._ask(agent):
                        await anyio.sleep(0.5)
                with anyio.move_on_after(60):  # followers are told one after the other, and the machine may be busy
                    while any(self.witness.untold()):
                        await anyio.sleep(0.5)
                problems += await self._let_read(agent)
        return problems

    async def _let_read(self, agent: str) -> list[str]:
        """Let an agent read one more chat. Its window may be too small for all of it."""
        member, prompts = self._members[0], self.witness.agents[agent].prompts
        before = len(prompts)
        try:
            await member.ask_agent(agent, "Is anything left to do?", inactivity_seconds=60)
        except MewAgentError as error:
            for held in [one for one in member.held if one.sender == agent]:
                await self._outcome(member, member.deliver(agent, held.correlation_ids[0], "digest"))
            with anyio.move_on_after(60):
                while len(prompts) == before:
                    await anyio.sleep(0.1)
                return []
            return [f"{agent} does not answer at the end: {error}"]
        return []

    async def _compactions(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for agent in AGENTS:
            page = await self._members[0].compaction_history(agent)
            found.update(one.trigger for one in page.entries)
        return found

    async def _read_sessions(self) -> None:
        """Read from the session of each agent when its main calls failed, and by which ids its summaries may cite.

        What it gave up, it need not have read.
        """
        for agent in AGENTS:
            path = self._folder / f"{agent}.db"
            store = SqliteStore(path)
            calls = await store.calls()
            await store.aclose()
            with closing(sqlite3.connect(path)) as db:
                said = "SELECT id, original FROM items WHERE json_extract(original, '$.role') <> 'assistant'"
                for item_id, text in db.execute(said):
                    self.witness.item(item_id, text)
            self.witness.agents[agent].failures = [one.at for one in calls if one.role == "main" and one.failed]

    async def _recall_problems(self) -> list[str]:
        """What is recoverable is found by a search, and what is gone is not."""
        last = {one.receipt.id: one.receipt for one in self.witness.claims if one.how == "asked"}
        out = [one for one in last.values() if one.in_context in ("recoverable", "gone")]
        problems = []
        for receipt in self._random.sample(out, min(MOST_SEARCHED, len(out))):
            chat = self.witness.chats[receipt.id]
            found = await self._members[0].recall(chat.agent, chat.mark)
            if any(chat.mark in one.text for one in found) != (receipt.in_context == "recoverable"):
                problems.append(f"{chat.mark} is {receipt.in_context}, but a search found {len(found)} items")
        return problems


def _earlier(at: str) -> str:
    return wire_timestamp(datetime.fromisoformat(at) - timedelta(seconds=TOLD_BEFORE_SECONDS))


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common())


async def run_receipts(plan: ReceiptPlan, folder: Path) -> ReceiptReport:
    """Run a plan with its files in an empty folder. Raises `PromiseBroken`."""
    with only_error():
        return await ReceiptRun(plan, folder).run()
