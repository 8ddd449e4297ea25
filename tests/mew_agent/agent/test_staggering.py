"""Compactions of a space: in line by the statuses alone, and never more at once than allowed."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.payloads.retrieval import RequestHistory
from mew_spaces.config.loading import load_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.agent.agent import Agent
from mew_agent.agent.staggering import COMPACTING, STALE_SECONDS, WAITING, CompactionLine
from mew_agent.config.agent_config import AgentConfig
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RehearsalOptions, RehearsalServer, serve_rehearsal
from tests.support.agents import EnvelopeRecorder, StartAgent
from tests.support.rehearsal_model import rehearsal_model

AGENTS = ("a1", "a2", "a3", "a4")
COMPACTED = "compacted"


@given(st.integers(1, 3), st.lists(st.sampled_from(AGENTS), max_size=60), st.randoms(use_true_random=False))
def test_agents_with_the_same_order_of_statuses_never_exceed_the_limit(
    most: int, moves: list[str], random: Any
) -> None:
    """Each agent reads the one log at its own pace, and acts on what it has read."""
    log: list[tuple[str, str]] = []
    lines = {me: CompactionLine(me) for me in AGENTS}
    read = dict.fromkeys(AGENTS, 0)
    state = dict.fromkeys(AGENTS, "active")
    for number, me in enumerate([*moves, *(AGENTS * 8)]):
        until = random.randint(read[me], len(log)) if number < len(moves) else len(log)
        for sender, word in log[read[me] : until]:
            lines[me].observe(sender, word, at_seconds=0.0)
        read[me] = until
        if state[me] == "active":
            state[me] = WAITING
            log.append((me, WAITING))
        elif state[me] == WAITING and lines[me].holds_me and lines[me].may_start(most, at_seconds=0.0):
            state[me] = COMPACTING
            log.append((me, COMPACTING))
        elif state[me] == COMPACTING:
            state[me] = "done"
            log.append((me, COMPACTED))
        assert sum(word == COMPACTING for word in state.values()) <= most
    assert set(state.values()) == {"done"}


def test_ids_decide_where_a_welcome_gives_no_order() -> None:
    line = CompactionLine("b")
    line.restart({"c": WAITING, "a": WAITING, "b": WAITING, "d": "active"}, at_seconds=0.0)
    assert (line.may_start(1, at_seconds=0.0), line.may_start(2, at_seconds=0.0)) == (False, True)


def test_an_agent_that_fell_silent_does_not_hold_up_the_line() -> None:
    line = CompactionLine("b")
    line.observe("a", COMPACTING, at_seconds=0.0)
    assert not line.may_start(1, at_seconds=STALE_SECONDS)
    assert line.may_start(1, at_seconds=STALE_SECONDS + 1)
    line.observe("c", f"{COMPACTING}:again", at_seconds=STALE_SECONDS)
    assert not line.may_start(1, at_seconds=STALE_SECONDS + 1)
    line.remove("c")
    assert line.may_start(1, at_seconds=STALE_SECONDS + 1)


@dataclass
class Crowd:
    """Four agents in one space, each with its own rehearsal model, and `ada`, who sees every status."""

    ada: Participant
    recorder: EnvelopeRecorder
    servers: dict[str, RehearsalServer]

    async def ask_all(self, text: str) -> None:
        """Ask every agent, and wait for all answers."""
        async with anyio.create_task_group() as tasks:
            for name in AGENTS:
                tasks.start_soon(self.ask, name, text)

    async def ask(self, name: str, text: str) -> None:
        await self.ada.ask("chat", {"text": text}, to=name, answer="chat", timeout_seconds=60)

    def most_at_once(self) -> int:
        """The largest number of agents between the statuses `compacting` and the one that ends it."""
        running: set[str] = set()
        most = 0
        for envelope in self.recorder.received:
            if envelope.kind == "participant/status" and not envelope.to:
                if str(envelope.body["status"]).partition(":")[0] == COMPACTING:
                    running.add(envelope.sender)
                else:
                    running.discard(envelope.sender)
            most = max(most, len(running))
        return most


@asynccontextmanager
async def crowd(tmp_path: Path, **settings: Any) -> AsyncIterator[Crowd]:
    capabilities = '{capabilities: [{kind: "*"}]}'
    lines = "\n".join(f"  {name}: {capabilities}" for name in ("ada", *AGENTS))
    path = tmp_path / "space.yaml"
    path.write_text(f"space: {{id: demo, name: Demo}}\nparticipants:\n{lines}\n")
    space = load_space(path)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(serve_gateway(space, tokens=TokenBook.generate(space)))
        ada = Participant(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada"))
        await stack.enter_async_context(ada)
        recorder, servers = EnvelopeRecorder(ada), {}
        for name in AGENTS:
            options = RehearsalOptions(window_tokens=2000, chunk_delay_seconds=0.01)
            server = servers[name] = await stack.enter_async_context(serve_rehearsal(options))
            model = rehearsal_model(server.base_url)
            stack.push_async_callback(model.aclose)
            values = {"gateway": gateway.ws_url, "space": "demo", "id": name, "token": gateway.token_of(name)}
            config = AgentConfig.model_validate(
                {**values, "model": "rehearsal", "context_token_limit": 2000, **settings}
            )
            await stack.enter_async_context(Agent(config, model))
        with anyio.fail_after(60):
            yield Crowd(ada, recorder, servers)


async def fill(crowd: Crowd, text: Callable[[int], str]) -> None:
    """Three turns, and one whose reported size makes all agents compact, while there is room."""
    for _ in range(3):
        await crowd.ask_all(text(120))
    for server in crowd.servers.values():
        server.change(fixed_usage=((1840, 10, 1850),))
    await crowd.ask_all("And now?")


async def test_half_of_the_agents_compact_at_once_and_the_others_follow(
    tmp_path: Path, text: Callable[[int], str]
) -> None:
    async with crowd(tmp_path) as four:
        await fill(four, text)
        await four.recorder.until(lambda: all(COMPACTED in four.recorder.words(name) for name in AGENTS))
        assert four.most_at_once() <= 2
        waited = [name for name in AGENTS if WAITING in four.recorder.words(name)]
        assert waited, "they announce themselves before they compact"


async def test_an_agent_in_line_answers_and_compacts_when_it_must(tmp_path: Path, text: Callable[[int], str]) -> None:
    async with crowd(tmp_path, max_compacting=1) as four:
        # A peer that compacts without end, as far as others can see.
        await four.ada.send("participant/status", {"messages_in_context": 0, "status": COMPACTING})
        await fill(four, text)
        await four.recorder.until(lambda: all(WAITING in four.recorder.words(name) for name in AGENTS))
        await four.ask("a1", "Are you there?")
        assert COMPACTED not in four.recorder.words("a1")
        await four.ask("a1", text(1200))
        assert COMPACTED in four.recorder.words("a1"), "the request would not have fitted"
        assert COMPACTED not in four.recorder.words("a2")
        await four.ada.send("participant/status", {"messages_in_context": 0, "status": "active"})
        await four.recorder.until(lambda: all(COMPACTED in four.recorder.words(name) for name in AGENTS))


async def test_an_agent_in_line_stays_there_when_a_request_has_nothing_to_do(
    tmp_path: Path, text: Callable[[int], str]
) -> None:
    async with crowd(tmp_path, max_compacting=1) as four:
        await four.ada.send("participant/status", {"messages_in_context": 0, "status": COMPACTING})
        await fill(four, text)
        await four.recorder.until(lambda: all(WAITING in four.recorder.words(name) for name in AGENTS))
        done = await four.ada.compact("a1", target_percent=100, timeout_seconds=60)
        assert (done.skipped, done.reason) == (True, "already_below_target")
        await four.recorder.until(lambda: four.recorder.words("a1")[-2:] == [COMPACTING, WAITING])
        await four.ada.send("participant/status", {"messages_in_context": 0, "status": "active"})
        await four.recorder.until(lambda: all(COMPACTED in four.recorder.words(name) for name in AGENTS))


async def test_an_agent_compacts_before_a_task_that_would_not_fit(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(window_tokens=6000, agent={"compact_early": True}) as s:
        for tokens in (200, 1600, *[400] * 4, 700):
            await s.ask(text(tokens))
        compacted = await s.recorder.first("coder", "participant/status", status=COMPACTED)
        words = [status["status"] for status in s.statuses]
        due, compacting = words[words.index(COMPACTED) - 2 : words.index(COMPACTED)]
        assert compacting == COMPACTING
        reason = due.removeprefix("compaction_due:")
        assert reason.startswith("the next task of the usual size, 1,")
        last = compacted.body["context"]["last_compaction"]
        assert (last["trigger"], last["reason"]) == ("next_task", reason)
        assert last["tokens_before"] * 10 < 9 * 6000
        (entry,) = (await s.agent.conversation.archive.history(RequestHistory())).entries
        assert (entry.trigger, entry.reason) == ("next_task", reason)
