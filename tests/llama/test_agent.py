"""An agent of ours in a real gateway, thinking with llama.cpp's own server: what peers see, and what the server did."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import load_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.agent.agent import Agent
from mew_agent.config.agent_config import AgentConfig
from mew_agent.errors import ChatRefused
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.participant.participant import Participant
from tests.llama.server import LlamaServer
from tests.support.agents import SPACE, EnvelopeRecorder
from tests.support.texts import paragraphs

PATIENCE_SECONDS = 120.0
SYSTEM = "You keep records of what the stations measured."
TEMPLATE_TOKENS = 24
"""At most, around two messages."""
TEXTS = [text[:400] for text in paragraphs(60, seed=11)]


def add(left: int, right: int) -> str:
    """Adds two whole numbers."""
    return str(left + right)


@dataclass
class Scene:
    """One agent `coder` on the server, and `ada`, whose `ear` records everything."""

    server: LlamaServer
    gateway: RunningGateway
    agent: Agent
    ada: Participant
    recorder: EnvelopeRecorder

    async def send_chat(self, text: str) -> Envelope:
        """Ada sends a chat to the agent, without waiting for an answer."""
        return await self.ada.chat(text, to="coder")

    async def ask(self, text: str) -> str:
        """Ada asks the agent and reads the answer."""
        answer = await self.ada.ask("chat", {"text": text}, to="coder", answer="chat", timeout_seconds=PATIENCE_SECONDS)
        return str(answer.body["text"])

    @property
    def statuses(self) -> list[dict[str, Any]]:
        """Payloads of all statuses the agent broadcast."""
        return [dict(e.body) for e in self.recorder.sent_by("coder", "participant/status") if not e.to]

    @property
    def reported(self) -> list[dict[str, Any]]:
        """The first status after each reported call."""
        first: dict[str, dict[str, Any]] = {}
        for status in self.statuses:
            if status["context"]["basis"] == "reported":
                first.setdefault(status["context"]["call_id"], status)
        return list(first.values())

    @property
    def slot_tokens(self) -> int:
        """Tokens of the newest prompt and its reply, as the server's slot holds them."""
        (slot,) = self.server.slots
        return int(slot["n_prompt_tokens"]) + 1  # the token that ends a reply is not put into the slot

    async def idle(self) -> None:
        """Wait until the server generates nothing."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while await anyio.to_thread.run_sync(lambda: self.server.busy_slots):
                await anyio.sleep(0.01)  # another process: there is nothing to wait on but its answers


Staging = Callable[..., AbstractAsyncContextManager[Scene]]


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    space = load_space(path)
    async with serve_gateway(space, tokens=TokenBook.generate(space)) as running:
        yield running


@pytest.fixture
def staging(gateway: RunningGateway, server: LlamaServer) -> Staging:
    """`staging(at=server, tools=(), call_bound_seconds=30.0, **agent settings)`."""

    @asynccontextmanager
    async def build(
        at: LlamaServer = server, tools: tuple[Any, ...] = (), call_bound_seconds: float = 30.0, **values: Any
    ) -> AsyncIterator[Scene]:
        config = {"gateway": gateway.ws_url, "space": "demo", "id": "coder", "token": gateway.token_of("coder")}
        config |= {"model": "tiny", "base_url": at.base_url, "system_prompt": SYSTEM, **values}
        model = OpenAIModel("tiny", at.base_url, max_retries=0)
        agent = Agent(AgentConfig.model_validate(config), model, call_bound_seconds=call_bound_seconds)
        for tool in tools:
            agent.tool(tool)
        ada = Participant(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada"))
        try:
            await agent.conversation.load()
            async with ada:
                recorder = EnvelopeRecorder(ada)
                async with agent, anyio.create_task_group() as tasks:
                    tasks.start_soon(agent.run)
                    if "context_token_limit" not in values:
                        await recorder.until(lambda: any(basis == "loaded" for basis in window_bases(recorder)))
                    with anyio.fail_after(PATIENCE_SECONDS):
                        yield Scene(at, gateway, agent, ada, recorder)
                    tasks.cancel_scope.cancel()
        finally:
            await model.aclose()

    def window_bases(recorder: EnvelopeRecorder) -> list[str]:
        return [e.body["context"]["max_tokens_basis"] for e in recorder.sent_by("coder", "participant/status")]

    return build


async def test_all_members_read_the_servers_figures_after_each_answer(staging: Staging) -> None:
    async with staging() as s:
        for text in TEXTS[:6]:
            answer = await s.ask(text)
            status = s.reported[-1]
            report = status["context"]
            assert status["tokens"] == s.slot_tokens
            assert report["completion_tokens"] == len(s.server.tokenize(f" {answer}")) + 1  # as the model wrote it
            assert status["tokens"] == report["prompt_tokens"] + report["completion_tokens"]
            assert (status["max_tokens"], report["max_tokens_basis"]) == (4096, "loaded")
        assert len(s.reported) == 6
        board = {entry.id: entry for entry in s.gateway.board().participants}
        assert board["coder"].status is not None
        assert board["coder"].status.tokens == s.reported[-1]["tokens"]


async def test_a_compaction_asked_for_is_done_and_the_next_report_agrees(staging: Staging) -> None:
    async with staging() as s:
        for text in TEXTS[:10]:
            await s.ask(text)
        before = s.reported[-1]["tokens"]
        requested = await s.ada.send("participant/compact", {}, to="coder")
        done = await s.recorder.first("coder", "participant/compact-done", about=requested)
        assert (done.body["status"], done.body["tokens_before"]) == ("compacted", before)
        assert done.body["freed_tokens"] == before - done.body["tokens_after"] > 0
        await s.ask("What is left?")
        report = s.reported[-1]["context"]
        assert s.reported[-1]["tokens"] == s.slot_tokens
        assert report["last_compaction"]["freed_tokens"] == done.body["freed_tokens"]
        assert abs(report["drift_tokens"]) <= before // 10


async def test_a_long_conversation_compacts_itself_and_never_loops_or_overflows(staging: Staging) -> None:
    async with staging() as s:
        answers = [await s.ask(text) for text in TEXTS[:45]]
        assert all(answers)
        assert len(s.reported) == 45
        words = [status["status"] for status in s.statuses]
        compactions = s.reported[-1]["context"]["compactions"]
        assert compactions >= 2
        assert words.count("compacting") == words.count("compacted") == compactions
        assert not [word for word in words if word.startswith(("compaction_", "context_", "model_", "truncated"))]
        assert max(status["tokens"] for status in s.reported) <= 4096
        for at, status in enumerate(s.statuses):
            if status["status"] == "compacted":
                last, earlier = status["context"]["last_compaction"], s.statuses[at - 1]
                assert last["tokens_before"] == earlier["tokens"]
                assert last["trigger"] == "would_overflow" or earlier["tokens"] * 10 >= 4096 * 9
                assert status["tokens"] < 4096 * 7 // 10


async def test_a_reply_that_fills_the_window_is_made_room_for(staging: Staging) -> None:
    async with staging() as s:
        await s.ask(TEXTS[0])
        sung = await s.ask("!sing")
        assert s.reported[-1]["tokens"] == 4096
        assert is_song_to_the_brim(sung)
        for text in TEXTS[1:5]:
            assert not (await s.ask(text)).startswith("My model call failed")
            assert s.reported[-1]["tokens"] < 4096 * 9 // 10
        assert s.reported[-1]["context"]["compactions"] == 1
        words = [status["status"] for status in s.statuses]
        assert words.count("reply_cut:context_full") == 1
        assert not [word for word in words if word.startswith(("compaction_", "context_", "model_"))]


def is_song_to_the_brim(answer: str) -> bool:
    """One word over and over, until the server had no room for more."""
    song, _, end = answer.partition("\n\n")
    return len(set(song.split())) == 1 and end == "[My answer ends here: my context window is full.]"


async def test_an_urgent_control_restarts_the_generation(
    staging: Staging,
) -> None:
    async with staging(call_bound_seconds=0.05) as s:
        await s.ask(TEXTS[0])
        question = await s.send_chat("!sing")
        with anyio.fail_after(PATIENCE_SECONDS):
            while await anyio.to_thread.run_sync(lambda: s.server.busy_slots) == 0:
                await anyio.sleep(0)
        requested = await s.ada.send("participant/forget", {"direction": "oldest", "entries": 2}, to="coder")
        await s.recorder.first("coder", "participant/status", about=requested)
        answer = await s.recorder.first("coder", "chat", about=question)
        assert is_song_to_the_brim(answer.body["text"])
        assert len(s.agent.conversation.history.items) <= 2
        assert len(s.reported) == 2


async def test_a_window_reported_too_large_is_learnt_and_the_question_answered(staging: Staging) -> None:
    async with staging(context_token_limit=20_000) as s:
        for text in TEXTS[:30]:
            assert not (await s.ask(text)).startswith("My model call failed")
        assert s.reported[-1]["max_tokens"] == 4096
        assert s.reported[-1]["context"]["max_tokens_basis"] == "loaded"
        compacted = [status["context"]["last_compaction"] for status in s.statuses if status["status"] == "compacted"]
        assert [compaction["trigger"] for compaction in compacted].count("overflow_error") == 1


async def test_a_message_larger_than_the_window_is_refused_and_left_out(staging: Staging) -> None:
    async with staging() as s:
        await s.ask(TEXTS[0])
        with pytest.raises(ChatRefused, match="of the window of 4,096 fit, even after a compaction"):
            await s.ask("water " * 5000)
        await s.ask(TEXTS[1])
        assert s.reported[-1]["tokens"] == s.slot_tokens < 1500


async def test_a_cancelled_turn_stops_the_generation_at_the_server(staging: Staging) -> None:
    async with staging() as s:
        question = await s.send_chat("!sing")
        start = await s.recorder.first("coder", "reasoning/start", about=question)
        with anyio.fail_after(PATIENCE_SECONDS):
            while await anyio.to_thread.run_sync(lambda: s.server.busy_slots) == 0:
                await anyio.sleep(0)
        await s.ada.send("reasoning/cancel", {"reason": "enough"}, context=start.id)
        conclusion = await s.recorder.first("coder", "reasoning/conclusion", cancelled=True)
        assert conclusion.body["reason"] == "enough"
        await s.idle()
        assert s.server.slots[0]["next_token"][0]["n_decoded"] < 3500
        assert await s.ask(TEXTS[0])
        assert not s.recorder.sent_by("coder", "chat", about=question)


async def test_a_tool_gets_the_models_arguments_and_the_answer_follows(staging: Staging) -> None:
    async with staging(tools=(add,)) as s:
        answer = await s.ask("!act")
        call, result = s.agent.conversation.history.items[1:3]
        assert [made.name for made in call.tool_calls] == ["add"]
        assert result.content.lstrip("-").isdigit()
        assert answer == s.agent.conversation.history.items[3].content
        assert len(s.reported) == 2


async def test_thinking_is_shown_and_not_sent_again(staging: Staging) -> None:
    async with staging() as s:
        question = await s.send_chat("!think")
        answer = await s.recorder.first("coder", "chat", about=question)
        assert "think>" not in answer.body["text"]
        item = s.agent.conversation.history.items[-1]
        assert item.thinking
        await s.ask(TEXTS[0])
        first, second = (status["context"] for status in s.reported)
        item_tokens = len(s.server.tokenize(answer.body["text"]))
        assert first["completion_tokens"] > len(s.server.tokenize(f" {answer.body['text']}")) + 1
        question_tokens = len(s.server.tokenize(TEXTS[0]))
        grown = second["prompt_tokens"] - first["prompt_tokens"]
        assert grown == pytest.approx(item_tokens + question_tokens, abs=TEMPLATE_TOKENS)
