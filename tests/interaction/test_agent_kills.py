"""Agents that are killed: every question is answered once, whatever instruction a process died at.

`make test-long` kills more often, with a seed of its own.
"""

import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio.streams.text import TextReceiveStream, TextSendStream
from mew_protocol.envelope import PROTOCOL, Envelope, wire_timestamp
from mew_protocol.json_values import objects_at
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.agent.agent import Agent
from mew_agent.config.agent_config import AgentConfig
from mew_agent.participant.answers.builder import AgentRestarted, Answered, AnswerEvent, ContextNotice, Writing
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RehearsalOptions, RehearsalServer, serve_rehearsal
from tests.support.agents import EnvelopeRecorder
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.warm_start import PYTHON

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and fork")

KILLS = int(os.environ.get("MEW_KILLS", "8"))
SEED = int(os.environ.get("MEW_SEED", "1"))

MOST_UNANSWERED = 6

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}], tokens: [a]}
  coder:
    command: mew
    tokens: [c]
    capabilities: [{kind: chat}, {kind: "chat/*"}, {kind: "reasoning/*"}, {kind: "stream/*"},
                   {kind: participant/status}, {kind: participant/compact-done},
                   {kind: participant/receipts}]
limits: {envelopes_per_second: 100000, envelope_burst: 100000, history_envelopes: 100000}
"""


@dataclass
class AgentProcesses:
    """The processes of one agent, one after another."""

    starter: anyio.abc.Process
    lines: AsyncIterator[str]
    commands: TextSendStream
    pid: int = 0
    kills: int = 0

    async def start(self) -> None:
        """Start the next process."""
        await self.commands.send("start\n")
        self.pid = int(await anext(self.lines))

    async def kill(self) -> None:
        """Kill the process, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.kills += 1
        assert await anext(self.lines) == "ended"


@asynccontextmanager
async def agent_processes(environment: dict[str, str]) -> AsyncIterator[AgentProcesses]:
    program = Path(__file__).parents[1] / "support" / "killable_agent.py"
    async with await anyio.open_process(
        [PYTHON, str(program)], env={**os.environ, **environment}, stderr=None
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdin is not None
        processes = AgentProcesses(starter, _lines(starter.stdout), TextSendStream(starter.stdin))
        try:
            yield processes
        finally:
            if processes.pid:
                os.kill(processes.pid, signal.SIGKILL)
            starter.kill()


async def _lines(stream: anyio.abc.ByteReceiveStream) -> AsyncIterator[str]:
    rest = ""
    async for text in TextReceiveStream(stream):
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            yield line


@dataclass
class Scene:
    ada: Participant
    recorder: EnvelopeRecorder
    agent: AgentProcesses
    model: RehearsalServer
    notes: Path
    random: Random
    questions: list[Envelope] = field(default_factory=list)

    async def ask(self, text: str, **more: Any) -> Envelope:
        question = await self.ada.send("chat", {"text": text, **more}, to="coder")
        self.questions.append(question)
        return question

    @property
    def answers(self) -> Counter[str]:
        """How many answers each question has, by its id."""
        return Counter(name for chat in self.recorder.sent_by("coder", "chat") for name in chat.correlation_ids)

    @property
    def unanswered(self) -> int:
        """How many questions have no answer yet."""
        return len(self.questions) - len(self.answers)

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        with anyio.fail_after(seconds):
            while not condition():
                await anyio.sleep(0.02)

    async def until_answered(self) -> None:
        await self.until(lambda: all(self.answers[question.id] for question in self.questions))


@asynccontextmanager
async def scene(
    folder: Path, seed: int = 0, settings: dict[str, Any] | None = None, **rehearsal: object
) -> AsyncIterator[Scene]:
    notes = folder / "notes.txt"
    notes.touch()
    async with (
        serve_gateway(parse_space(SPACE), state=folder / "state") as gateway,
        serve_rehearsal(RehearsalOptions.model_validate({"chunk_delay_seconds": 0.01, **rehearsal})) as model,
        Participant(gateway.ws_url, space="demo", id="ada", token="a") as ada,
        agent_processes(
            {
                "MEW_GATEWAY": gateway.ws_url,
                "MEW_SPACE": "demo",
                "MEW_PARTICIPANT_ID": "coder",
                "MEW_TOKEN": "c",
                "OPENAI_BASE_URL": model.base_url,
                "OPENAI_API_KEY": "key",
                "OPENAI_MODEL": "rehearsal",
                "MEW_AGENT_CONFIG": json.dumps({"store": str(folder / "session.db"), **(settings or {})}),
                "NOTES": str(notes),
            }
        ) as agent,
    ):
        recorder = EnvelopeRecorder(ada)
        await agent.start()
        with anyio.fail_after(PATIENCE_SECONDS):
            while "coder" not in ada.peers:
                await anyio.sleep(0.02)
        await recorder.first("coder", "participant/status")
        yield Scene(ada, recorder, agent, model, notes, Random(seed))


async def test_every_question_to_a_killed_agent_is_answered_once(tmp_path: Path) -> None:
    async with scene(tmp_path, SEED) as s:
        number = before = 0
        while s.agent.kills < KILLS:
            for _ in range(s.random.randrange(3) if s.unanswered < MOST_UNANSWERED else 0):
                number += 1
                tool = f'call note with {{"word": "w{number}"}}' if s.random.random() < 0.4 else "What is water?"
                session = s.random.choice(({}, {"session": "one"}, {"session": "two"}))
                await s.ask(f"Question {number}. {tool}", **session)
            if s.random.random() < 0.7:  # else it may die before it has joined
                await s.recorder.until(lambda before=before: len(s.recorder.sent_by("coder")) > before)  # type: ignore[misc]
            await anyio.sleep(s.random.uniform(0.0, 0.6))
            await s.agent.kill()
            if s.random.random() < 0.3 and s.unanswered < MOST_UNANSWERED:
                number += 1
                await s.ask(f"Question {number}, while nobody is there?")
            before = len(s.recorder.sent_by("coder"))
            await s.agent.start()
        await s.until_answered()
        await s.ask("Is anything left?")
        await s.until_answered()
        assert set(s.answers.values()) == {1}
        assert set(s.answers) == {question.id for question in s.questions}
        started = [start.id for start in s.recorder.sent_by("coder", "reasoning/start")]
        concluded = Counter(end.context for end in s.recorder.sent_by("coder", "reasoning/conclusion"))
        assert [one for one in started if concluded[one] != 1] == []
        assert "restarted" in s.recorder.words("coder")


async def test_killed_agents_answer_shared_turns_once(tmp_path: Path) -> None:
    settings = {"between_steps": "all", "together": 3}
    async with scene(tmp_path, SEED, settings, window_tokens=100_000, reply_tokens=40) as s:
        cancelled = set[str]()
        while s.agent.kills < KILLS:
            before = len(s.recorder.sent_by("coder"))
            for _ in range(s.random.randrange(6) if s.unanswered < MOST_UNANSWERED else 0):
                number = len(s.questions)
                tool = f'call note with {{"word": "w{number}"}}' if s.random.random() < 0.5 else "What is water?"
                question = await s.ask(f"<{number}> {tool}")
                if s.random.random() < 0.15:
                    cancelled.add(question.id)
                    await anyio.sleep(s.random.uniform(0.0, 0.3))
                    await s.ada.send("chat/cancel", {}, to="coder", correlation_id=(question.id,))
            if s.random.random() < 0.8:
                with anyio.move_on_after(10):
                    await s.recorder.until(lambda before=before: len(s.recorder.sent_by("coder")) > before)  # type: ignore[misc]
            await anyio.sleep(s.random.uniform(0.0, 0.8))
            await s.agent.kill()
            await s.agent.start()
        wanted = [question.id for question in s.questions if question.id not in cancelled]
        await s.until(lambda: all(s.answers[name] for name in wanted), 120)
        s.questions = [await s.ask("Is anything left?")]
        await s.until_answered()
        assert set(s.answers.values()) == {1}
        for request in s.model.requests:
            read = [str(one["content"]) for one in objects_at(request.body, "messages") if one["role"] == "user"]
            numbers = [name for text in read for name in re.findall(r"^<\d+>", text, re.MULTILINE)]
            assert len(numbers) == len(set(numbers))
        together = [chat for chat in s.recorder.sent_by("coder", "chat") if len(chat.correlation_ids) > 1]
        divided = [request for request in s.model.requests if "### " in str(request.body["messages"])]
        assert together or divided
        by_id = {chat.id: chat for chat in s.recorder.sent_by("coder", "chat")}
        for receipt in await s.ada.receipts("coder", *wanted[-100:]):
            assert receipt.state == "answered"
            assert receipt.call is not None
            assert receipt.id in by_id[str(receipt.answer)].correlation_ids


async def test_an_interrupted_tool_call_is_not_repeated_silently(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        question = await s.ask("call hang with {}")
        await s.until(lambda: "hang" in s.notes.read_text())
        await s.agent.kill()
        await s.agent.start()
        answer = await s.recorder.first("coder", "chat", about=question)
        assert "The call may have had its effect" in answer.body["text"]
        assert s.notes.read_text().split() == ["hang"]
        interrupted, concluded = s.recorder.sent_by("coder", "reasoning/conclusion", about=question)
        assert interrupted.body["interrupted"] is True
        assert "interrupted" not in concluded.body
        assert s.recorder.words("coder", about=question) == ["restarted"]


async def test_a_restarted_agent_answers_and_ignores_old_controls(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await s.agent.kill()
        await s.until(lambda: "coder" not in s.ada.peers)
        await s.ada.send("participant/shutdown", {}, to="coder")
        cancelled = await s.ada.chat("Never mind?", to="coder")
        await s.ada.send("chat/cancel", {}, to="coder", correlation_id=(cancelled.id,))
        await s.ask("Are you there?")
        await s.agent.start()
        await s.until_answered()
        await s.ask("Are you still there?")
        await s.until_answered()
        assert s.answers[cancelled.id] == 0
        assert "shutting_down" not in s.recorder.words("coder")


async def test_an_answer_comes_after_the_agent_was_killed_and_says_so(tmp_path: Path) -> None:
    async with scene(tmp_path, chunk_delay_seconds=0.1) as s:
        events: list[AnswerEvent] = []

        async def ask() -> None:
            events.extend([event async for event in s.ada.ask_agent("coder", "What is water?")])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await s.recorder.first("coder", "reasoning/start")
            await s.agent.kill()
            await s.until(lambda: "coder" not in s.ada.peers)
            await s.agent.start()
        kinds = [type(event) for event in events]
        assert kinds.index(AgentRestarted) < kinds.index(Writing) < kinds.index(Answered)
        assert isinstance(events[-1], Answered)
        written = "".join(event.text for event in events if isinstance(event, Writing))
        assert written.endswith(events[-1].text)
        assert any("waiting for its return" in event.text for event in events if isinstance(event, ContextNotice))


async def test_an_agent_killed_while_joining_answers_later(tmp_path: Path) -> None:
    async with (
        serve_gateway(parse_space(SPACE), state=tmp_path / "state") as gateway,
        serve_rehearsal() as model,
        Participant(gateway.ws_url, space="demo", id="ada", token="a") as ada,
        anyio.create_task_group() as tasks,
    ):
        recorder = EnvelopeRecorder(ada)
        earlier = await ada.chat("Before you existed?", to="coder")
        config = AgentConfig.model_validate(
            {
                "gateway": gateway.ws_url,
                "space": "demo",
                "id": "coder",
                "token": "c",
                "model": "rehearsal",
                "base_url": model.base_url,
                "api_key": "key",
                "store": tmp_path / "session.db",
            }
        )
        killed = Agent.from_config(config)
        assert await killed._runtime.inbox.load() is None
        # Its file is what a process leaves that dies before it has read its welcome.
        await killed._sessions.aclose()
        async with Participant(gateway.ws_url, space="demo", id="coder", token="c"):
            question = await ada.chat("Are you there?", to="coder")
        async with Agent.from_config(config) as agent:
            tasks.start_soon(agent.run)
            await recorder.first("coder", "chat", about=question)
            later = await ada.chat("Thank you?", to="coder")
            await recorder.first("coder", "chat", about=later)
        assert recorder.sent_by("coder", "chat", about=earlier) == []
        tasks.cancel_scope.cancel()


async def test_the_clock_of_a_sender_makes_no_question_outdated(tmp_path: Path) -> None:
    async with scene(tmp_path, settings={"max_question_age_seconds": 600}) as s:
        await s.agent.kill()
        behind = wire_timestamp(datetime.now(UTC) - timedelta(hours=1))
        draft = {"protocol": PROTOCOL, "id": "late-clock", "ts": behind, "from": "ada", "kind": "chat", "to": ["coder"]}
        question = Envelope.model_validate({**draft, "payload": {"text": "Are you there?"}})
        await s.ada.messenger.session.client.send(question)
        await s.agent.start()
        answer = await s.recorder.first("coder", "chat", about=question)
        assert "too late" not in answer.body["text"]
        assert len(s.model.requests) == 1


async def test_an_outdated_question_is_declined_without_a_model_call(tmp_path: Path) -> None:
    async with scene(tmp_path, settings={"max_question_age_seconds": 1e-6}) as s:
        await s.agent.kill()
        question = await s.ask("Are you there?")
        await s.ada.chat("Is anybody there?")
        await s.agent.start()
        answer = await s.recorder.first("coder", "chat", about=question)
        assert "reached me too late" in answer.body["text"]
        assert s.model.requests == []
        later = await s.ask("And now?")
        await s.recorder.first("coder", "chat", about=later)
        assert "Is anybody there?" in str(s.model.requests[-1].body["messages"])
