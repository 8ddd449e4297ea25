"""Agents under the LM Studio preset: before a request, at a tool result, during a reply; over real sockets.

Ids name the rows of the test tables this system was specified by.
"""

import json
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mew_protocol.codec import StreamFrame
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.agent.agent import Agent, run_agent
from mew_agent.agent.sessions import check_provider
from mew_agent.config.agent_config import AgentConfig
from mew_agent.conversation.conversation_events import ContextCompacted, ConversationEvent
from mew_agent.errors import ConfigError
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal
from mew_agent.parts.rehearsal.tokenizer import count
from tests.support.agents import AgentDriver
from tests.support.rehearsal_model import rehearsal_model
from tests.support.waiting import PATIENCE_SECONDS

StartAgent = Callable[..., Any]
"""`start_agent(...)` of the conftest."""

Text = Callable[[int], str]

NOTED = {"text": "Noted."}


def lmstudio(limit: int | None = 4096, **values: Any) -> dict[str, Any]:
    """An agent's configuration."""
    return {"policy": "lmstudio", "policy_scope": "any", "context_token_limit": limit, **values}


class Viewer(Participant):
    """Watches the reasoning stream."""

    def __init__(self, gateway: RunningGateway) -> None:
        super().__init__(gateway.ws_url, space="demo", id="bob", token=gateway.token_of("bob"))
        self.frames: list[dict[str, Any]] = []
        self._changed = anyio.Event()

    async def receive_frame(self, frame: StreamFrame) -> None:
        self.frames.append(json.loads(frame.data))
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def concluded(self) -> None:
        """Wait until a reasoning has ended."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while not any(frame.get("event") == "conclusion" for frame in self.frames):
                await self._changed.wait()

    @property
    def story(self) -> list[str]:
        """The stream in order: text without repetitions, and notices by name."""
        found: list[str] = []
        for frame in self.frames:
            word = "text" if frame["type"] == "token" else str(frame.get("event"))
            if frame["type"] in ("token", "notice") and found[-1:] != [word]:
                found.append(word)
        return found


@asynccontextmanager
async def watching(driver: AgentDriver) -> AsyncIterator[Viewer]:
    async with Viewer(driver.gateway) as viewer:
        yield viewer


async def fill(driver: AgentDriver, text: Text, tokens: int) -> None:
    """Ask until the next prompt holds about this many tokens."""
    while driver.agent.conversation.tracker.ledger.next_prompt_tokens < tokens:
        await driver.ask(text(240))
        await driver.status()


def compactions(driver: AgentDriver) -> list[str]:
    return [w for w in driver.recorder.words("coder") if w in ("compacting", "compacted")]


# -- before a request, and after a call --------------------------------------------------------------------


@pytest.mark.parametrize(("total", "compacts"), [(5_400, False), (5_600, True)], ids=["O1", "O2"])
async def test_a_request_without_room_for_its_answer_is_compacted_first(
    start_agent: StartAgent, text: Text, total: int, compacts: bool
) -> None:
    """4/5 of 8,192 with a fifth of the rest: 5,553 tokens go as they are. A short question adds a few."""
    usage = ((1500, 60, 1560), (3000, 60, 3060), (total - 60, 60, total))
    async with start_agent(agent=lmstudio(8192), script=[NOTED] * 4, fixed_usage=usage) as s:
        for _ in usage:
            await s.ask(text(200))
        assert compactions(s) == []
        await s.ask("And now?")
        assert compactions(s) == (["compacting", "compacted"] if compacts else [])
        if compacts:
            assert s.agent.conversation.tracker.last_compaction.trigger == "pre_request"


@pytest.mark.parametrize(("total", "compacts"), [(29_491, False), (29_492, True)], ids=["O6 below", "O6 at"])
async def test_a_reply_that_reaches_nine_tenths_causes_a_compaction(
    start_agent: StartAgent, text: Text, total: int, compacts: bool
) -> None:
    usage = ((4000, 60, 4060), (9000, 60, 9060), (total - 60, 60, total))
    async with start_agent(agent=lmstudio(32_768), fixed_usage=usage) as s:
        for _ in usage:
            await s.ask(text(200))
        await s.status()
        if compacts:
            await s.recorder.first("coder", "participant/status", status="compacted")
            assert s.agent.conversation.tracker.last_compaction.trigger == "after_call"
        else:
            assert compactions(s) == []


async def test_o8_a_reply_past_the_window_is_reported_and_then_compacted(start_agent: StartAgent, text: Text) -> None:
    usage = ((9000, 60, 9060), (18_000, 60, 18_060), (29_000, 4000, 33_000))
    async with start_agent(agent=lmstudio(32_768), fixed_usage=usage) as s:
        for _ in usage:
            assert await s.ask(text(200))
        stopped = "policy_stopped:the context window is full (33,000 of 32,768 tokens, reported)"
        await s.recorder.first("coder", "participant/status", status=stopped)
        await s.ask("And now?")
        assert compactions(s) == ["compacting", "compacted"]


async def test_o16_a_call_without_usage_keeps_the_last_figure(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=lmstudio(8192), fixed_usage=((900, 60, 960), None)) as s:
        await s.ask(text(60))
        await s.ask(text(60))
        status = await s.status()
        assert (status["tokens"], status["context"]["basis"]) == (960, "projected")
        assert status["context"]["last_reported"]["tokens"] == 960
        assert compactions(s) == []


async def test_o5_a_window_without_room_for_an_answer_is_an_error(start_agent: StartAgent) -> None:
    async with start_agent(agent=lmstudio(1000)) as s:
        answer = await s.ask("Hello?")
        assert "a window of 1000 tokens has no room" in answer
        assert s.server.requests == []


# -- while a reply streams ---------------------------------------------------------------------------------


async def test_a_stopped_reply_starts_over_in_the_same_stream(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=lmstudio(), reply_tokens=60) as s, watching(s) as viewer:
        await fill(s, text, 1700)
        viewer.frames.clear()
        s.server.change(script=({"text": text(2600)}, {"text": "The short version."}))
        question = await s.send_chat("Tell me everything.")
        answer = await s.recorder.first("coder", "chat", about=question)
        assert answer.body["text"] == "The short version."
        await viewer.concluded()
        assert viewer.story == ["text", "context_compacting", "context_compacted", "text"]
        sizes = [frame for frame in viewer.frames if frame.get("event") == "context_size"]
        assert {frame["basis"] for frame in sizes} == {"projected", "server_counted"}
        # The server counts what is only projected, so that the reply is stopped at nine tenths and not before.
        assert 4096 * 35 <= max(frame["tokens"] for frame in sizes) * 40 <= 4096 * 37
        assert s.main_requests[-1].is_complete
        assert len(s.recorder.sent_by("coder", "chat", about=question)) == 1
        assert len(s.recorder.sent_by("coder", "reasoning/start", about=question)) == 1
        assert len(s.recorder.sent_by("coder", "reasoning/conclusion", about=question)) == 1
        calls = await s.agent.conversation.state.store.calls()
        assert [call.role for call in calls[-3:]] == ["main", "summary", "main"]
        assert calls[-3].failed is not None
        assert calls[-3].failed.startswith("stopped by the policy")


async def test_a_dense_reply_stops_at_nine_tenths_of_the_window(start_agent: StartAgent, text: Text) -> None:
    """Hexadecimal text takes far more tokens than any projection expects that has read only prose."""
    dense = " ".join(f"{random.Random(number).getrandbits(128):032x}" for number in range(450))
    async with (
        start_agent(agent=lmstudio(8192), reply_tokens=60, script=[NOTED] * 4) as s,
        watching(s) as viewer,
    ):
        for _ in range(4):
            await s.ask(text(500))
        await viewer.concluded()
        viewer.frames.clear()
        s.server.change(script=({"text": dense}, NOTED))
        assert await s.ask("Print the keys.") == "Noted."
        await viewer.concluded()
        stopped = s.main_requests[-2]
        names = [frame.get("event") for frame in viewer.frames]
        shown = viewer.frames[: names.index("context_compacting")]
        seen = stopped.prompt_tokens + count("".join(frame["value"] for frame in shown if frame["type"] == "token"))
        assert 8192 * 90 <= seen * 100 <= 8192 * 92
        sizes = [frame for frame in shown if frame.get("event") == "context_size"]
        assert sizes[-1]["basis"] == "server_counted"
        assert abs(sizes[-1]["tokens"] - seen) <= 32


async def test_o11_three_restarts_and_then_an_error(
    start_agent: StartAgent, text: Text, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mew_agent.conversation")
    script = [{"text": text(2400)} for _ in range(5)]
    async with start_agent(agent=lmstudio(2048), script=script) as s, watching(s) as viewer:
        answer = await s.ask("Tell me everything.")
        assert "still over the limit after 3 restarts of this request" in answer
        await viewer.concluded()
        assert len(s.main_requests) == 4
        assert viewer.story == [*["text", "context_compacting", "context_not_compacted"] * 3, "text"]
        assert [r.getMessage() for r in caplog.records if "starts over" in r.getMessage()] == [
            f"the reply starts over (attempt {number} of 3)" for number in (1, 2, 3)
        ]
        s.server.change(script=(NOTED,))
        assert await s.ask("And in short?") == "Noted."


async def test_o8_a_reply_beyond_the_window_is_aborted(start_agent: StartAgent, text: Text) -> None:
    script = [{"text": text(3000)}]
    async with start_agent(agent=lmstudio(2048), script=script, tokens_per_chunk=5000) as s, watching(s) as viewer:
        answer = await s.ask("Tell me everything.")
        assert "the context window is full" in answer
        await viewer.concluded()
        (aborted,) = [frame for frame in viewer.frames if frame["type"] == "notice"]
        assert (aborted["event"], aborted["max_tokens"], aborted["basis"]) == (
            "context_aborted",
            2048,
            "server_counted",
        )
        assert aborted["tokens"] >= 2048
        assert f"{aborted['tokens']:,} of 2,048 tokens, server_counted" in answer
        await s.recorder.until(lambda: len(s.recorder.sent_by("coder", "chat")) == 1)


@pytest.mark.parametrize("behaviour", ["fail", "empty"])
async def test_o13_without_a_summary_the_oldest_turns_are_dropped(
    start_agent: StartAgent, text: Text, behaviour: str
) -> None:
    async with start_agent(agent=lmstudio(), reply_tokens=60, summary_behaviour=behaviour) as s:
        await fill(s, text, 1900)
        s.server.change(script=({"text": text(2400)}, {"text": "The short version."}))
        assert await s.ask("Tell me everything.") == "The short version."
        assert s.agent.conversation.history.summary is None
        assert s.agent.conversation.tracker.last_compaction.summary_tokens == 0


# -- tool results ------------------------------------------------------------------------------------------


async def test_o9_a_compaction_makes_room_for_a_tool_result(start_agent: StartAgent, text: Text) -> None:
    report = text(2300)
    happened: list[ConversationEvent] = []

    async def record(event: ConversationEvent) -> None:
        happened.append(event)

    def fetch() -> str:
        """Fetch the report."""
        return report

    async with start_agent(agent=lmstudio(), tools=[fetch], reply_tokens=60) as s, watching(s) as viewer:
        await fill(s, text, 1800)
        viewer.frames.clear()
        s.agent.conversation.events.subscribe(record)
        s.server.change(script=({"tool_calls": [{"name": "fetch"}]}, {"text": "Read."}))
        assert await s.ask("Fetch it.") == "Read."
        assert next(e.trigger for e in happened if isinstance(e, ContextCompacted)) == "tool_result"
        await viewer.concluded()
        assert viewer.story[:2] == ["context_compacting", "context_compacted"]
        assert s.main_requests[-1].body["messages"][-1]["content"] == report


async def test_o10_an_oversized_tool_result_is_an_error(start_agent: StartAgent, text: Text) -> None:
    def fetch() -> str:
        """Fetch something huge."""
        return text(5000)

    async with start_agent(agent=lmstudio(), tools=[fetch]) as s:
        answer = await s.ask("call fetch with {}")
        assert "the tool result alone exceeds the context window" in answer
        assert len(s.main_requests) == 1
        assert compactions(s) == []
        assert await s.ask("Are you still here?")
        assert s.main_requests[-1].is_complete


# -- providers ---------------------------------------------------------------------------------------------


async def test_o14_without_a_window_the_agent_calls_no_model(start_agent: StartAgent) -> None:
    async with start_agent(agent=lmstudio(None), report_window=False) as s:
        word = "policy_stopped:the context window of 'rehearsal' is unknown; set `context_token_limit`"
        await s.recorder.until(lambda: word in s.recorder.words("coder"))
        assert "cannot work without a known context window" in await s.ask("Hello?")
        assert s.server.requests == []
        status = await s.status()
        assert "max_tokens" not in status
        s.server.change(report_window=True)
        assert await s.ask("Hello now?")
        assert (await s.status())["max_tokens"] == 8192


def configured(gateway: RunningGateway, base_url: str, **values: Any) -> AgentConfig:
    return AgentConfig.model_validate(
        {
            "gateway": gateway.ws_url,
            "space": "demo",
            "id": "coder",
            "token": gateway.token_of("coder"),
            "model": "rehearsal",
            "base_url": base_url,
            "policy": "lmstudio",
            **values,
        }
    )


@pytest.mark.parametrize(
    ("values", "refused"),
    [({}, True), ({"policy_scope": "any"}, False), ({"provider": "lmstudio"}, False), ({"policy": "mew"}, False)],
)
async def test_a_policy_for_another_provider_is_refused_by_default(
    gateway: RunningGateway, values: dict[str, Any], refused: bool
) -> None:
    async with serve_rehearsal() as server:
        config = configured(gateway, server.base_url, **values)
        model = rehearsal_model(server.base_url)
        try:
            if refused:
                with pytest.raises(ConfigError, match=r"is for lmstudio, not for .*`policy_scope: any`"):
                    await run_agent(config)
                with pytest.raises(ConfigError, match="is for lmstudio"):
                    async with Agent(config, model):
                        raise AssertionError
            else:
                await check_provider(config, model)
        finally:
            await model.aclose()


async def test_another_model_on_another_server_writes_the_summaries(
    gateway: RunningGateway, joined: Callable[..., Participant], text: Text
) -> None:
    usage = ((4000, 60, 4060), (9000, 60, 9060), (29_432, 60, 29_492))
    async with (
        serve_rehearsal(RehearsalOptions(fixed_usage=usage, window_tokens=32_768)) as server,
        serve_rehearsal(RehearsalOptions(model="small")) as other,
        joined("ada") as ada,
    ):
        summariser = {"model": "small", "base_url": other.base_url}
        config = configured(gateway, server.base_url, policy_scope="any", api_key="key", summariser=summariser)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_agent, config)
            with anyio.fail_after(PATIENCE_SECONDS):
                while "coder" not in ada.peers:
                    await anyio.lowlevel.checkpoint()
                for _ in usage:
                    await ada.ask("chat", {"text": text(200)}, to="coder", answer="chat")
                await other.wait_until(lambda: bool(other.requests))
            tasks.cancel_scope.cancel()
        assert [request.is_summary for request in other.requests] == [True]
        assert not any(request.is_summary for request in server.requests)
