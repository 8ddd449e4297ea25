"""A space on two gateways and three NATS servers while all of them, and the network between them, break, by a seed.

Owns the servers, the members, the load and the schedule of faults. `witness` checks what the members saw; `run_several`
raises `PromiseBroken` with the seed and the history.
"""

import json
import signal
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import nats
import nats.errors
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_spaces.parts.jetstream.nats_server import NatsServer

from mew_agent.errors import GatewayError
from mew_agent.participant.gaps import HistoryGap
from mew_agent.participant.participant import Participant
from tests.faults.harness import RunReport, outcome_of, send_status
from tests.faults.processes import GatewayProcess
from tests.faults.witness import ChatKey, DeliveryWitness, PromiseBroken, SendOutcome
from tests.support.faulty_link import FaultyLink, faulty_link
from tests.support.ports import unused_ports
from tests.support.waiting import until

SPACE_ID = "several"
KICKED = "kicked"
KICK = ChatKey("the kick", 1)
"""The place of the kick in what a member received."""

SETTLE_SECONDS = 120.0
GATEWAY_FAULTS: Mapping[str, int] = {"kill gateway": 3, "pause gateway": 2}
NATS_FAULTS: Mapping[str, int] = {"kill leader": 3, "pause NATS server": 2}
LINK_FAULTS: Mapping[str, int] = {"cut network": 3, "stall network": 2, "dark network": 2}

MEMBER_FAULTS: Mapping[str, int] = {"cut member": 1, "cut member in a message": 2}


@dataclass(frozen=True)
class SeveralPlan:
    """What a run does."""

    seed: int
    seconds: float = 60.0
    members: int = 4
    sends_per_second: float = 8.0
    """Of each member, while nothing is broken."""

    def names(self) -> list[str]:
        """The ids of the members that stay."""
        return [f"m{number}" for number in range(self.members)]

    def space_yaml(self, servers: list[NatsServer]) -> str:
        """The space that both gateways serve."""
        people: dict[str, dict[str, Any]] = {
            name: {"tokens": [name], "capabilities": [{"kind": "*"}]} for name in (*self.names(), KICKED)
        }
        for number, name in enumerate(people):
            if number % 2:
                people[name]["command"] = "true"
        return json.dumps(
            {
                "space": {"id": SPACE_ID},
                "participants": people,
                "backplane": {"servers": [server.address for server in servers], "replicas": 3},
                "limits": {
                    "history_envelopes": 200_000,
                    "history_bytes": 256 * 1024 * 1024,
                    "envelopes_per_second": 100_000,
                    "envelope_burst": 100_000,
                },
                "gateway_logging": {"enabled": False},
            }
        )


@dataclass
class SeveralReport(RunReport):
    """The figures of a run on two gateways."""

    gateway_starts: int

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.gateway_starts} starts of gateways; 0 violations"


class SeveralMember(Participant):
    """A member that knows both gateways, sends numbered chats and records what arrives."""

    def __init__(self, name: str, addresses: str, run: "SeveralRun") -> None:
        super().__init__(addresses, space=SPACE_ID, id=name, token=name, first_connect_seconds=60)
        self._run = run
        self.arrived = run.witness.arrivals.get(name, run.kicked_arrivals)
        self.last_status = 0
        self.on(HistoryGap)(self._note_gap)

    async def receive(self, envelope: Envelope) -> None:
        """Record a chat, or the kick."""
        if envelope.kind == kinds.CHAT:
            sender, number, _ = str(envelope.body["text"]).split(" ", 2)
            self.arrived.append(ChatKey(sender, int(number)))
        elif envelope.kind == kinds.SPACE_KICK and KICK not in self.arrived:
            self.arrived.append(KICK)
        elif envelope.kind == kinds.STREAM_CLOSE:
            self._run.does_time_pass = True

    async def _note_gap(self, gap: HistoryGap) -> None:
        self._run.witness.gaps[self.id] += 1
        self._run.note(f"{self.id} was told of a gap: {gap.reason} {gap.after} {gap.before}")

    async def keep_sending(self, random: Random) -> None:
        """Send one chat after the other, and now and then a status, until the run stops or we are removed."""
        run, number = self._run, 0
        try:
            while not (run.is_stopping or self.session.ended.is_set()):
                number += 1
                key = ChatKey(self.id, number)
                run.witness.outcomes[key] = SendOutcome.UNKNOWN
                filler = "x" * random.choice((1, 20, 300, 300, 5_000))
                wait = random.choice((3.0, 20.0, 60.0))
                sending = self.send(kinds.CHAT, {"text": f"{self.id} {number} {filler}"}, wait_seconds=wait)
                run.witness.outcomes[key] = await outcome_of(sending, lambda text: run.note(f"{self.id}: {text}"))
                if number % 5 == 0:
                    self.last_status = await send_status(self, number, run.note, before=self.last_status)
                await anyio.sleep(random.uniform(0, 2 / run.plan.sends_per_second))
        except GatewayError:
            if not self.session.ended.is_set():
                raise


class SeveralRun:
    """One run of a plan."""

    def __init__(self, plan: SeveralPlan, folder: Path) -> None:
        self.plan = plan
        self.witness = DeliveryWitness(plan.names(), unconfirmed_may_be_late=True)
        self.kicked_arrivals: list[ChatKey] = []
        self.is_stopping = False
        self.does_time_pass = False
        """Whether a gateway closed the stream whose owner never joined; of the two, one does such things."""
        self.faults: Counter[str] = Counter()
        self._folder = folder
        self._random = Random(plan.seed)
        self._servers: list[NatsServer] = []
        self._gateways: list[GatewayProcess] = []
        self._killed: set[GatewayProcess] = set()
        self._links: list[list[FaultyLink]] = []
        """Of each gateway to each NATS server."""
        self._member_links: list[list[FaultyLink]] = []
        """Of each member to each gateway."""
        self._members: list[SeveralMember] = []
        self._found: list[str] = []
        self._ends: dict[str, str] = {}
        """Why the connections of members ended for good."""
        self._started_at = 0.0

    def note(self, event: str) -> None:
        """Add an event to the history."""
        self.witness.note(anyio.current_time() - self._started_at, event)

    async def run(self) -> SeveralReport:
        """Run the plan and check what was seen. Raises `PromiseBroken`."""
        self._started_at = anyio.current_time()
        settled = 0.0
        async with AsyncExitStack() as stack:
            await self._start_servers(stack)
            try:
                settled = await self._run_members()
            except Exception as error:
                self._found += traceback.format_exception(error)
        problems = self._found + self.witness.violations() + self._end_violations() + self._kick_violations()
        if self.witness.gaps:  # the history holds everything that a run sends
            problems.append(f"gaps: {dict(self.witness.gaps)}")
        for gateway in self._gateways:
            for word in ("Traceback", "failed to apply", "failed to perform"):
                if (at := gateway.output.find(word)) >= 0:
                    problems.append(f"{gateway.name} wrote: {gateway.output[max(0, at - 500) : at + 4000]}")
        if problems:
            raise self._broken(problems)
        return SeveralReport(
            seed=self.plan.seed,
            seconds=anyio.current_time() - self._started_at,
            faults=self.faults,
            outcomes=Counter(outcome.value for outcome in self.witness.outcomes.values()),
            deliveries=sum(len(arrived) for arrived in self.witness.arrivals.values()),
            gateway_starts=sum(gateway.starts for gateway in self._gateways),
            settle_seconds=settled,
        )

    async def _start_servers(self, stack: AsyncExitStack) -> None:
        routes = [f"nats://127.0.0.1:{port}" for port in unused_ports(3)]
        for number, route in enumerate(routes):
            settings = f"server_name: s{number}\ncluster {{ name: c, listen: {route[7:]}, routes: {routes} }}\n"
            server = NatsServer(self._folder / f"nats-{number}", settings=settings)
            stack.callback(server.stop)
            await anyio.to_thread.run_sync(server.start)
            self._servers.append(server)
        space_yaml = self.plan.space_yaml(self._servers)
        for number in range(2):
            ports = [int(server.address.rpartition(":")[2]) for server in self._servers]
            links = [await stack.enter_async_context(faulty_link(port)) for port in ports]
            addresses = ",".join(f"nats://127.0.0.1:{link.port}" for link in links)
            gateway = GatewayProcess(
                self._folder, space_yaml, name=f"gateway-{number}", options=("--backplane", addresses)
            )
            stack.callback(gateway.close)
            self._links.append(links)
            self._gateways.append(gateway)
            await gateway.start()
        await until(self._is_whole, every_seconds=0.3)

    async def _keep_gateways_running(self) -> None:
        """Start gateways again that ended because NATS was away when they started, as a supervisor does."""
        while True:
            for gateway in self._gateways:
                if gateway.has_ended and gateway not in self._killed:
                    self.faults["gateway ended by itself"] += 1
                    self.note(f"{gateway.name} ended by itself: {gateway.output[-200:]}")
                    gateway.launch()
            await anyio.sleep(0.5)

    async def _run_members(self) -> float:
        """Let members send while everything breaks. Returns how long it took until all had arrived."""
        async with AsyncExitStack() as stack:
            for name in (*self.plan.names(), KICKED):
                links = [await stack.enter_async_context(faulty_link(gateway.port)) for gateway in self._gateways]
                self._member_links.append(links)
                member = SeveralMember(name, ",".join(link.url for link in links), self)
                await stack.enter_async_context(_forgiving(member) if name == KICKED else member)
                self._members.append(member)
            watches = await stack.enter_async_context(anyio.create_task_group())
            watches.start_soon(self._keep_gateways_running)
            async with anyio.create_task_group() as tasks:
                for member in self._members:
                    tasks.start_soon(member.keep_sending, Random(f"{self.plan.seed} {member.id}"))
                    watches.start_soon(self._watch, member)
                await self._break_things()
                for link in (link for links in self._member_links for link in links):
                    link.cut_after_bytes = None
                self.is_stopping = True
                self.note("all faults are over")
            over_at = anyio.current_time()
            with anyio.move_on_after(SETTLE_SECONDS):
                await until(self._opens_stream, every_seconds=0.5)
                await until(self._is_settled, every_seconds=0.1)
            self._found += await self._differences()
            self._found += [] if self.does_time_pass else ["no gateway closed the stream of an absent owner"]
            watches.cancel_scope.cancel()
        return anyio.current_time() - over_at

    async def _watch(self, member: SeveralMember) -> None:
        await member.until_ended()
        try:
            await member.run_forever()
            self._ends[member.id] = "without an error"
        except GatewayError as error:
            self._ends[member.id] = f"{type(error).__name__}: {error}"
        self.note(f"{member.id} ended: {self._ends[member.id]}")

    async def _is_settled(self) -> bool:
        counts = {len(arrived) for arrived in self.witness.arrivals.values()}
        is_whole = len(counts) == 1 and not self.witness.missing()
        is_over = KICKED in self._ends and self.does_time_pass
        return is_whole and is_over and not await self._differences()

    async def _opens_stream(self) -> bool:
        """Let a guest that never joins open a stream by HTTP."""
        name = f"guest{self._random.randrange(10**9)}"
        url, invited = self._gateways[0].url, {"participant_id": name, "initial_capabilities": [{"kind": "stream/*"}]}
        try:
            async with httpx2.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=40) as http:

                async def post(sender: str, token: str, kind: str, payload: dict[str, Any]) -> Any:
                    body, headers = {"kind": kind, "payload": payload}, {"authorization": f"Bearer {token}"}
                    answer = await http.post(f"/participants/{sender}/messages", json=body, headers=headers)
                    return answer.raise_for_status().json()

                inviter = self.plan.names()[0]
                token = (await post(inviter, inviter, kinds.SPACE_INVITE, invited))["token"]
                await post(name, token, kinds.STREAM_REQUEST, {"direction": "upload"})
        except (httpx2.HTTPError, LookupError):
            return False
        return True

    # Faults

    async def _break_things(self) -> None:
        ends_at = anyio.current_time() + self.plan.seconds
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._kick, self.plan.seconds * self._random.uniform(0.3, 0.7))
            tasks.start_soon(self._break_repeatedly, GATEWAY_FAULTS, self._break_gateway, 4.0, ends_at)
            tasks.start_soon(self._break_repeatedly, NATS_FAULTS, self._break_nats, 5.0, ends_at)
            tasks.start_soon(self._break_repeatedly, LINK_FAULTS, self._break_links, 3.0, ends_at)
            tasks.start_soon(self._break_repeatedly, MEMBER_FAULTS, self._cut_member, 0.5, ends_at)

    async def _kick(self, after_seconds: float) -> None:
        await anyio.sleep(after_seconds)
        payload = {"participant_id": KICKED}
        while (
            await outcome_of(self._members[0].send(kinds.SPACE_KICK, payload, wait_seconds=60), self.note)
            is not SendOutcome.CONFIRMED
        ) and KICK not in self._members[0].arrived:
            await anyio.sleep(0.5)
        self.faults["kick"] += 1
        self.note("the kick is confirmed")

    async def _break_repeatedly(
        self,
        weights: Mapping[str, int],
        break_one: Callable[[str, Random], Awaitable[None]],
        pause_seconds: float,
        ends_at: float,
    ) -> None:
        random = Random(f"{self.plan.seed} {','.join(weights)}")
        while True:
            await anyio.sleep(random.uniform(0, 2 * pause_seconds))
            if anyio.current_time() >= ends_at:
                return
            fault = random.choices(tuple(weights), tuple(weights.values()))[0]
            self.faults[fault] += 1
            await break_one(fault, random)
            if weights is not MEMBER_FAULTS:
                self.note(f"{fault} is over")

    async def _break_gateway(self, fault: str, random: Random) -> None:
        gateway = random.choice(self._gateways)
        self.note(f"{fault}: {gateway.name}")
        if fault == "kill gateway":
            self._killed.add(gateway)
            gateway.kill()
            await anyio.sleep(random.choice((0.0, 1.0, 3.0, 8.0)))
            gateway.launch()
            self._killed.remove(gateway)
        else:
            gateway.freeze()
            await anyio.sleep(random.choice((0.5, 2.0, 5.0, 10.0)))
            gateway.thaw()

    async def _break_nats(self, fault: str, random: Random) -> None:
        """Break one server, and wait until the cluster is whole: of three, one may fail at a time."""
        server = await self._leader() if fault == "kill leader" else random.choice(self._servers)
        self.note(f"{fault}: {server.folder.name}")
        if fault == "kill leader":
            server.send_signal(signal.SIGKILL)
            await anyio.sleep(random.choice((0.0, 2.0, 6.0)))
            await anyio.to_thread.run_sync(server.stop)
            await anyio.to_thread.run_sync(server.start)
        else:
            server.send_signal(signal.SIGSTOP)
            await anyio.sleep(random.choice((0.5, 3.0, 8.0)))
            server.send_signal(signal.SIGCONT)
        await until(self._is_whole, every_seconds=0.3)

    async def _break_links(self, fault: str, random: Random) -> None:
        """Break the network between one gateway and one NATS server, or all."""
        number = random.randrange(2)
        links = random.choice((self._links[number], [random.choice(self._links[number])]))
        self.note(f"{fault}: {len(links)} of gateway-{number}")
        if fault == "cut network":
            for _ in range(random.choice((1, 5, 20))):
                for link in links:
                    await link.cut("reset" if random.random() < 0.5 else "close")
                await anyio.sleep(0.2)
            return
        for link in links:
            (link.stall if fault == "stall network" else link.go_dark)()
        await anyio.sleep(random.choice((0.5, 2.0, 4.0, 9.0)))
        for link in links:
            link.release()

    async def _cut_member(self, fault: str, random: Random) -> None:
        """Let a member send again what it sent already, perhaps to the other gateway."""
        for link in random.choice(self._member_links):
            if fault == "cut member":
                await link.cut("reset" if random.random() < 0.5 else "close")
            else:
                link.cut_after_bytes = random.randrange(1, 3_000)

    async def _streams(self) -> list[Any]:
        """What the cluster says of its streams; empty if it does not answer."""
        addresses = [server.address for server in self._servers]
        try:
            with anyio.fail_after(5):
                client = await nats.connect(addresses, allow_reconnect=False, connect_timeout=1)
                try:
                    return list(await client.jetstream(timeout=2).streams_info())
                finally:
                    await client.close()
        except (nats.errors.Error, OSError, TimeoutError):
            return []

    async def _leader(self) -> NatsServer:
        found: list[str] = []

        async def is_known() -> bool:
            found[:] = [
                one.cluster.leader
                for one in await self._streams()
                if "batches" in one.config.name and one.cluster.leader is not None
            ]
            return bool(found)

        await until(is_known, every_seconds=0.3)
        return self._servers[int(found[0][1:])]

    async def _is_whole(self) -> bool:
        """Whether every server has all that is stored."""
        streams = await self._streams()
        return bool(streams) and all(
            one.cluster.leader is not None
            and len(one.cluster.replicas or ()) == 2
            and all(replica.current and not replica.offline for replica in one.cluster.replicas)
            for one in streams
        )

    # Afterwards

    async def _differences(self) -> list[str]:
        """What the gateways do not agree on, or know wrongly."""
        try:
            states = [await self._state(gateway) for gateway in self._gateways]
        except (httpx2.HTTPError, ValueError, LookupError) as error:
            return [f"a gateway does not answer: {error!r}"]
        found = [
            f"{what} of the gateways: {states[0][what]} and {states[1][what]}"
            for what in ("participants", "board", "end of history")
            if states[0][what] != states[1][what]
        ]
        one, other = (state["history"] for state in states)
        common = min(len(one), len(other))
        if one[len(one) - common :] != other[len(other) - common :]:
            found.append(f"the last {common} envelopes in the histories of the gateways differ")
        for gateway, state in zip(self._gateways, states, strict=True):
            found += [f"{gateway.name} has {name} {n} times" for name, n in state["ids"].items() if n > 1]
            if state["kicked"] not in (401, 403) or state["participants"].get(KICKED):
                found.append(f"{gateway.name} still knows {KICKED}: {state['kicked']}")
            if missing := [name for name in self.plan.names() if not state["participants"].get(name)]:
                found.append(f"{gateway.name} has no {', '.join(missing)}")
            for member in self._members[: self.plan.members]:
                tokens = state["board"].get(member.id)
                if member.last_status > 0 and tokens != member.last_status:
                    found.append(f"{gateway.name}: {tokens} tokens for {member.id}, sent {member.last_status}")
        return found

    async def _state(self, gateway: GatewayProcess) -> dict[str, Any]:
        reader = self.plan.names()[0]
        history: list[str] = []
        ids: Counter[str] = Counter()
        async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False, timeout=30) as http:

            async def get(path: str, token: str = reader, **query: str) -> Any:
                return await http.get(path, params=query, headers={"authorization": f"Bearer {token}"})

            people, board = (await get("/participants")).json(), (await get(f"/spaces/{SPACE_ID}/context")).json()
            page = (await get(f"/participants/{reader}/messages", limit="1000")).json()
            while True:
                history += [json.dumps(one, sort_keys=True) for one in page["messages"]]
                ids.update(f"{one['id']} of {one['from']}" for one in page["messages"])
                if not page["more"]:
                    break
                page = (await get(f"/participants/{reader}/messages", limit="1000", since=page["next"])).json()
            return {
                "participants": {one["id"]: one["connected"] for one in people["participants"]},
                "board": {one["id"]: (one.get("status") or {}).get("tokens") for one in board["participants"]},
                "history": history,
                "ids": ids,
                "end of history": page["next"],
                "kicked": (await get("/participants", KICKED)).status_code,
            }

    def _kick_violations(self) -> list[str]:
        """A kick has one place in the order: before it, the member is whole; after it, nothing of or to it comes."""
        order = self.witness.arrivals[self.plan.names()[0]]
        if KICK not in order:
            return ["no member saw the kick"]
        place, found = order.index(KICK), []
        if late := [key for key in order[place:] if key.sender == KICKED]:
            found.append(f"{late} came after the kick")
        seen = [key for key in self.kicked_arrivals if key != KICK]
        if seen != order[: len(seen)] or len(seen) > place:
            found.append(f"{KICKED} got {len(seen)} chats, not those that came first of {place} before the kick")
        return found

    def _end_violations(self) -> list[str]:
        """Only the kicked member's connection ends."""
        found = [f"{name} ended: {why}" for name, why in self._ends.items() if name != KICKED]
        return found if KICKED in self._ends else [*found, f"the client of {KICKED} did not end"]

    def _broken(self, problems: list[str]) -> PromiseBroken:
        shown = problems[:30] + ([f"and {len(problems) - 30} more"] if len(problems) > 30 else [])
        lines = [f"seed {self.plan.seed}; {dict(self.faults)}", *shown, "history:", *self.witness.history]
        for gateway in self._gateways:
            lines += [f"output of {gateway.name}:", gateway.output[-3000:]]
        return PromiseBroken("\n".join(lines))


@asynccontextmanager
async def _forgiving(member: Participant) -> AsyncIterator[None]:
    """Let a member in that may be removed meanwhile."""
    with suppress(GatewayError):
        async with member:
            yield


async def run_several(plan: SeveralPlan, folder: Path) -> SeveralReport:
    """Run a plan with its files in an empty folder. Raises `PromiseBroken`."""
    return await SeveralRun(plan, folder).run()
