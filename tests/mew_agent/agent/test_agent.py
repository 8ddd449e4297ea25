"""The agent as a whole: what it answers, its queue, its figures over the wire, joining and leaving."""

import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.all_kinds import PAYLOADS
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent import Participant
from mew_agent.agent.agent import Agent, run_agent
from mew_agent.agent.inbox import MAX_OVERHEARD_CHATS, MAX_QUEUED_CHATS
from mew_agent.agent.turn import ConversationAnswer
from mew_agent.config.agent_config import AgentConfig
from mew_agent.context.sqlite_store import MemoryStore, SqliteStore
from mew_agent.context.store import InboxChange
from mew_agent.conversation.context_state import RESTARTED_RESULT
from mew_agent.conversation.conversation_events import ContextEvent
from mew_agent.errors import NotConnected, Superseded, Unauthorized
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.participant.peers import Peer, PeerContext
from mew_agent.parts.rehearsal import RecordedRequest, RehearsalOptions, RehearsalServer, serve_rehearsal
from mew_agent.parts.rehearsal.tokenizer import TOKENS_PER_MESSAGE, count_request
from tests.support.conversation_driver import count_message
from tests.support.rehearsal_model import rehearsal_model
from tests.support.waiting import PATIENCE_SECONDS, until

StartAgent = Callable[..., Any]
"""`start_agent(...)` of the conftest."""

Joined = Callable[..., Participant]


def config(gateway: RunningGateway, base_url: str, **values: Any) -> AgentConfig:
    return AgentConfig.model_validate(
        {
            "gateway": gateway.ws_url,
            "space": "demo",
            "id": "coder",
            "token": gateway.token_of("coder"),
            "model": "rehearsal",
            "base_url": base_url,
            **values,
        }
    )


@asynccontextmanager
async def rehearsing(**options: Any) -> AsyncIterator[tuple[RehearsalServer, OpenAIModel]]:
    async with serve_rehearsal(RehearsalOptions(**options)) as server:
        model = rehearsal_model(server.base_url)
        try:
            yield server, model
        finally:
            await model.aclose()


# -- figures over the wire ---------------------------------------------------------------------------------


async def test_the_first_status_reports_an_empty_queue(gateway: RunningGateway, start_agent: StartAgent) -> None:
    async with start_agent() as s:
        status = await s.status()
        assert "tokens" not in status
        assert status["max_tokens"] == 8192
        assert status["context"]["reason"] == "no_call_yet"
        assert status["context"]["queued"] == {"messages": 0, "tokens": 0, "basis": "heuristic"}
        board = {entry.id: entry for entry in gateway.board().participants}
        assert board["coder"].status is not None
        assert board["coder"].status.tokens is None


@pytest.mark.parametrize("place", ["empty_last_chunk", "finish_chunk", "before_null_usage_chunk", "no_total"])
async def test_each_status_after_a_call_equals_the_providers_total(
    start_agent: StartAgent, text: Callable[[int], str], place: str
) -> None:
    async with start_agent(usage_on=place) as s:
        for _ in range(3):
            await s.ask(text(60))
        true = [request.prompt_tokens + request.completion_tokens for request in s.main_requests]
        assert [status["tokens"] for status in s.reported] == true
        assert s.ada.peers["coder"].context.tokens == true[-1]


@pytest.mark.parametrize("options", [{"usage_on": "none"}, {"reject_stream_options": True}])
async def test_without_usage_no_status_contains_a_figure(start_agent: StartAgent, options: dict[str, Any]) -> None:
    async with start_agent(fixed_usage=((100, 20, 120),)) as s:
        await s.ask("One.")
        s.server.change(**options)
        await s.ask("Two.")
        status = s.statuses[-1]
        assert "tokens" not in status
        assert status["context"]["reason"] == "usage_unavailable"
        assert status["context"]["last_reported"]["tokens"] == 120


async def test_an_agent_compacts_at_nine_tenths_and_not_one_token_below(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    usage = ((3000, 60, 3060), (5000, 60, 5060), (7312, 60, 7372))
    async with start_agent(fixed_usage=usage) as s:
        for _ in usage:
            await s.ask(text(100))
        assert (await s.status())["context"]["level"] == "healthy"
        assert not s.summary_requests
    async with start_agent(fixed_usage=(*usage[:2], (7313, 60, 7373))) as s:
        for _ in usage:
            await s.ask(text(100))
        compacted = await s.recorder.first("coder", "participant/status", status="compacted")
        words = s.recorder.words("coder")
        assert words[-3:] == ["near_limit", "compacting", "compacted"]
        assert compacted.body["context"]["last_compaction"]["trigger"] == "threshold"
        last_chat = s.recorder.sent_by("coder", "chat")[-1]
        assert s.recorder.received.index(last_chat) < s.recorder.received.index(compacted)


def tools_tokens(request: RecordedRequest) -> int:
    messages, tools = cast("Any", request.body["messages"]), cast("Any", request.body.get("tools", []))
    return count_request(messages, tools) - count_request(messages)


async def test_a_compaction_stays_below_seven_tenths_and_announces_the_real_drop(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(window_tokens=3000) as s:
        while not s.recorder.sent_by("coder", "participant/status") or "compacted" not in s.recorder.words("coder"):
            await s.ask(text(70))
            await s.status()
            if s.reported[-1]["context"]["level"] == "near_limit":
                await s.recorder.first("coder", "participant/status", status="compacted")
        last = s.statuses[-1]["context"]["last_compaction"]
        assert last["trigger"] == "threshold"
        question = "What now?"
        await s.ask(question)
        prompt = s.main_requests[-1].prompt_tokens
        assert prompt <= 3000 * 7 // 10
        # A prompt holds the template's tokens around the newest reply, the reported total does not.
        left = prompt - count_message({"role": "user", "content": question, "name": "ada"}) - TOKENS_PER_MESSAGE
        left -= tools_tokens(s.main_requests[-1]) - tools_tokens(s.main_requests[-2])  # recall is offered from now on
        drop = last["tokens_before"] - left
        assert (last["freed_tokens"], last["basis"]) == (drop, "server_counted")
        assert abs(s.statuses[-1]["context"]["drift_tokens"]) <= 16


async def test_measured_compactions_are_exact_and_report_their_cost(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(agent={"measure_compactions": True}, counts_prompts=False) as s:
        for _ in range(5):
            await s.ask(text(150))
        before = s.main_requests[-1]
        asked = await s.control("compact")
        done = await s.recorder.first("coder", "participant/compact-done", about=asked)
        assert done.body["basis"] == "exact"
        assert done.body["cost"]["calls"] == 4, "one for the summary, three of one token"
        measuring = s.main_requests[-3:]
        assert [request.completion_tokens for request in measuring] == [1, 1, 1]
        assert measuring[0].prompt_tokens > before.prompt_tokens
        last = (await s.status())["context"]["last_compaction"]
        assert (last["basis"], last["freed_gross_basis"]) == ("exact", "exact")
        assert last["freed_tokens"] == measuring[0].prompt_tokens - measuring[2].prompt_tokens
        assert last["freed_gross_tokens"] == measuring[0].prompt_tokens - measuring[1].prompt_tokens
        question = "What now?"
        await s.ask(question)
        more = count_message({"role": "user", "content": question, "name": "ada"})
        more -= count_message({"role": "user", "content": "?"})  # what was measured ends in this
        more += tools_tokens(s.main_requests[-1]) - tools_tokens(measuring[2])  # recall is offered from now on
        assert s.main_requests[-1].prompt_tokens == measuring[2].prompt_tokens + more


async def test_a_forget_of_whole_call_intervals_is_exact(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    """Where the server cannot count: the first compaction removes the first question, whose size no report contains."""
    async with start_agent(counts_prompts=False) as s:
        for _ in range(5):
            await s.ask(text(60))
        prompts = [request.prompt_tokens for request in s.main_requests]
        for entries in (3, 4):
            asked = await s.control("forget", {"direction": "oldest", "entries": entries})
            await s.recorder.first("coder", "participant/status", about=asked, status="forgot")
        first, second = (await s.ada.compaction_history("coder")).entries
        assert (first.basis, first.freed_gross_basis) == ("projected", "projected")
        assert (second.basis, second.freed_gross_basis) == ("exact", "exact")
        assert second.freed_tokens == second.freed_gross_tokens == prompts[3] - prompts[1]


async def test_the_server_reports_the_window(start_agent: StartAgent) -> None:
    async with start_agent(window_tokens=4321, agent={"context_token_limit": None}) as s:
        await s.ask("One.")
        status = s.statuses[-1]
        assert status["max_tokens"] == 4321
        assert status["context"]["max_tokens_basis"] == "loaded"
        # Until the server answers, no window is shown rather than one that is only assumed.
        assert "assumed" not in [one["context"].get("max_tokens_basis") for one in s.statuses]


async def test_a_server_that_starts_later_is_asked_for_its_window(start_agent: StartAgent) -> None:
    async with serve_rehearsal() as first:
        port = first.port
    async with start_agent(agent={"base_url": f"http://127.0.0.1:{port}/v1", "context_token_limit": None}) as s:
        assert "could not reach my model" in await s.ask("Hello?")
        assert s.agent.conversation.tracker.window.basis == "assumed"
        async with serve_rehearsal(RehearsalOptions(window_tokens=5000), port=port):
            assert "could not reach my model" not in await s.ask("Hello?")
            await s.recorder.until(lambda: s.statuses[-1]["max_tokens"] == 5000)


async def test_the_window_is_asked_again_after_the_first_call(start_agent: StartAgent) -> None:
    async with start_agent(report_window=False, window_tokens=5000, agent={"context_token_limit": None}) as s:
        await s.ask("One.")
        assert s.agent.conversation.tracker.window.basis == "assumed"
        s.server.options = RehearsalOptions(window_tokens=5000)
        await s.ask("Two.")
        await s.recorder.until(lambda: s.statuses[-1]["max_tokens"] == 5000)


async def test_an_unknown_window_is_reported_as_assumed(start_agent: StartAgent) -> None:
    async with start_agent(report_window=False, agent={"context_token_limit": None}) as s:
        await s.ask("One.")
        await s.recorder.until(lambda: s.statuses[-1].get("max_tokens") == 128_000)
        assert s.statuses[-1]["context"]["max_tokens_basis"] == "assumed"


# -- the example of the documentation, verbatim ------------------------------------------------------------


async def test_the_example_in_the_documentation_works(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    """The last call is full of hidden reasoning, which is not sent again and so causes no compaction."""
    usage = tuple((500 * n, 60, 500 * n + 60) for n in range(1, 5))
    async with start_agent(fixed_usage=(*usage, (2500, 60, 7460))) as s:
        gateway: RunningGateway = s.gateway
        freed: list[int | None] = []
        async with Participant(gateway.ws_url, space="demo", id="bob", token=gateway.token_of("bob")) as me:
            assert me.peers["coder"].context.tokens is None

            @me.on_context  # every report of every peer
            async def watch(peer: Peer, report: PeerContext) -> None:
                if report.severity >= 2 and not freed:
                    done = await me.compact(peer.id, reason="running full")
                    freed.append(done.freed_tokens)
                    await me.aclose()

            @me.tool
            async def word_count(text: str) -> int:
                """Count the words of a text."""
                return len(text.split())

            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    await s.ask(text(100))
                await s.recorder.until(lambda: len(s.reported) == 4)
                await until(lambda: me.peers["coder"].context.tokens == 2060)
                assert me.peers["coder"].context.basis == "reported"
                tasks.start_soon(s.send_chat, text(100))
                with anyio.fail_after(PATIENCE_SECONDS):
                    await me.run_forever()
        assert s.agent.conversation.tracker.compactions == 1
        assert freed == [s.agent.conversation.tracker.last_compaction.freed_tokens]
        assert freed[0]


# -- what it answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "to", "answered"),
    [
        ("Tell me.", ("coder",), True),
        ("Tell us.", ("bob", "coder"), True),
        ("Coder, tell me.", (), True),
        ("I think @coder knows", ("bob",), True),
        ("Does anybody know?", (), True),
        ("I do not know.", (), False),
        ("Does bob know?", ("bob",), False),
        ("The decoder is broken.", (), False),
        ("coders are people", (), False),
    ],
)
async def test_an_agent_answers_chats_that_are_for_it(
    start_agent: StartAgent, text: str, to: tuple[str, ...], answered: bool
) -> None:
    async with start_agent() as s:
        chat = await s.ada.chat(text, to=to)
        await s.ask("A question to be sure that it was looked at.")
        assert bool(s.recorder.sent_by("coder", "chat", about=chat)) == answered
        heard = str(s.main_requests[-1].body["messages"])
        assert (text in heard) == (answered or not to), "what is said to everybody is remembered"


async def test_two_agents_do_not_reply_to_each_others_answers(start_agent: StartAgent, gateway: RunningGateway) -> None:
    script = [{"text": "writer knows more about this than coder."}] * 20
    async with start_agent(script=script) as s, rehearsing(script=script) as (other, model):
        second = Agent(config(gateway, other.base_url, id="writer", token=gateway.token_of("writer")), model)
        async with second, anyio.create_task_group() as tasks:
            tasks.start_soon(second.run)
            await s.ask("Who knows?")
            await s.ada.ask("chat", {"text": "And you?"}, to="writer", answer="chat", timeout_seconds=60)
            await s.ask("Sure?")
            tasks.cancel_scope.cancel()
        assert (len(s.main_requests), len(other.requests)) == (2, 1)


async def test_an_agent_without_auto_respond_answers_nothing(start_agent: StartAgent) -> None:
    async with start_agent(agent={"auto_respond": False}) as s:
        await s.send_chat("Hello coder?")
        await s.status()
        assert not s.recorder.sent_by("coder", "chat", "chat/acknowledge")


async def test_chats_to_a_busy_agent_are_acknowledged_and_answered_in_order(start_agent: StartAgent) -> None:
    async with start_agent(chunk_delay_seconds=0.002) as s:
        questions = [await s.send_chat(f"Question number {number}?") for number in range(4)]
        await s.recorder.first("coder", "chat", about=questions[-1])
        answers = [e.correlation_id[0] for e in s.recorder.sent_by("coder", "chat") if e.correlation_id]
        assert answers == [question.id for question in questions]
        for question in questions[1:]:
            words = [e.body["status"] for e in s.recorder.sent_by("coder", "chat/acknowledge", about=question)]
            assert words == ["queued", "processing"]
        assert [e.body["status"] for e in s.recorder.sent_by("coder", "chat/acknowledge", about=questions[0])] == [
            "processing"
        ]


async def test_a_chat_to_a_paused_agent_is_acknowledged_at_once(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        await s.control("pause")
        await s.recorder.first("coder", "participant/status", status="paused")
        question = await s.send_chat("Anything new?")
        await s.recorder.first("coder", "chat/acknowledge", about=question, status="queued")
        assert not s.main_requests
        await s.control("resume")
        await s.recorder.first("coder", "chat", about=question)


async def test_a_queued_chat_can_be_cancelled_by_its_sender(start_agent: StartAgent, joined: Joined) -> None:
    async with start_agent(chunk_delay_seconds=0.01) as s, joined("bob") as bob:
        first, second, third = [await s.send_chat(f"Question number {number}?") for number in range(3)]
        await s.recorder.first("coder", "chat/acknowledge", about=third)
        await bob.send("chat/cancel", {}, to="coder", correlation_id=(third.id,))
        await s.ada.send("chat/cancel", {"reason": "never mind"}, to="coder", correlation_id=(second.id,))
        await s.recorder.first("coder", "chat", about=third)
        assert s.recorder.sent_by("coder", "chat", about=first)
        assert not s.recorder.sent_by("coder", "chat", about=second)
        assert not [r for r in s.main_requests if "number 1?" in str(r.body["messages"])]


async def test_a_full_queue_refuses_the_next_chat(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        await s.control("pause")
        await s.recorder.first("coder", "participant/status", status="paused")
        for number in range(MAX_QUEUED_CHATS + 2):
            await s.send_chat(f"Number {number}?")
        refusal = await s.recorder.first(
            "coder", "chat/acknowledge", status=f"refused:{MAX_QUEUED_CHATS} of your chats are waiting already"
        )
        assert (refusal.to, refusal.body["code"]) == (("ada",), "queue_full")
        await s.control("shutdown")


async def test_the_number_of_overheard_chats_is_bounded(start_agent: StartAgent) -> None:
    async with start_agent(window_tokens=100_000) as s:
        for number in range(MAX_OVERHEARD_CHATS + 3):
            await s.ada.chat(f"Remark {number}.")
        await s.ask("What was said?")
        heard = str(s.main_requests[-1].body["messages"])
        assert "Remark 2." not in heard
        assert "Remark 3." in heard
        assert len(s.main_requests) == 1


# -- joining and leaving -----------------------------------------------------------------------------------


async def test_after_a_rejoin_the_agent_sends_its_status_and_continues(space: SpaceConfig, tokens: TokenBook) -> None:
    async def host(port: int, stop: anyio.Event, *, task_status: Any) -> None:
        async with serve_gateway(space, tokens=tokens, port=port) as gateway:
            task_status.started(gateway)
            await stop.wait()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with rehearsing() as (server, model), anyio.create_task_group() as gateways:
            stop, end = anyio.Event(), anyio.Event()
            first: RunningGateway = await gateways.start(host, 0, stop)
            async with (
                Agent(config(first, server.base_url), model) as agent,
                joined_at(first) as ada,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(agent.run)
                await ada.ask("chat", {"text": "One?"}, to="coder", answer="chat", timeout_seconds=60)
                tokens_then = ada.peers["coder"].context.tokens
                assert tokens_then is not None
                stop.set()
                await until(lambda: not agent.is_joined and not ada.is_joined)
                second: RunningGateway = await gateways.start(host, first.port, end)

                def on_the_board() -> int | None:
                    statuses = {entry.id: entry.status for entry in second.board().participants}
                    status = statuses["coder"]
                    return status.tokens if status else None

                await until(lambda: on_the_board() == tokens_then)
                answer = await ada.ask("chat", {"text": "Two?"}, to="coder", answer="chat", timeout_seconds=60)
                assert answer.body["text"]
                tasks.cancel_scope.cancel()
            end.set()


def joined_at(gateway: RunningGateway) -> Participant:
    return Participant(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada"))


async def test_entering_an_agent_makes_it_answer_until_the_block_ends(gateway: RunningGateway, joined: Joined) -> None:
    async with rehearsing() as (server, model), joined("ada") as ada:
        agent = Agent(config(gateway, server.base_url), model)
        events: list[ContextEvent] = []
        agent.on_context_event(lambda event: events.append(event))
        async with agent:
            answer = await ada.ask("chat", {"text": "Hello?"}, to="coder", answer="chat", timeout_seconds=60)
            assert answer.body["text"]
            await until(lambda: bool(events))
        await until(lambda: "coder" not in ada.peers)


async def test_an_agent_leaves_with_the_error_of_its_work(
    gateway: RunningGateway, joined: Joined, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "mew_agent")

    class BrokenStore(MemoryStore):
        async def change_inbox(self, change: InboxChange) -> None:
            if change.removed:
                raise RuntimeError("cannot answer")

    async with (
        rehearsing() as (server, model),
        joined("ada") as ada,
        Agent(config(gateway, server.base_url), model, BrokenStore()) as agent,
    ):
        await ada.chat("Hello?", to="coder")
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(RuntimeError, match="cannot answer"):
            await agent.run()


async def test_a_superseded_agent_stops_with_the_reason(gateway: RunningGateway) -> None:
    newer = Participant(gateway.ws_url, space="demo", id="coder", token=gateway.token_of("coder"))
    async with rehearsing() as (server, model), Agent(config(gateway, server.base_url), model) as agent, newer:
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(Superseded):
            await agent.run()


async def test_a_refused_agent_ends_with_the_reason(gateway: RunningGateway, tmp_path: Path, free_port: int) -> None:
    nowhere = f"http://127.0.0.1:{free_port}/v1"
    wrong = config(gateway, nowhere, token="wrong", store=tmp_path / "s" / "x.sqlite")
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(Unauthorized):
        await run_agent(wrong)
    alone = config(gateway, nowhere).model_copy(update={"gateway": f"ws://127.0.0.1:{free_port}"})
    model = OpenAIModel("rehearsal", nowhere, "key")
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(NotConnected):
        async with Agent(alone, model, first_connect_seconds=0.2):
            pass


async def test_an_agent_runs_until_a_shutdown(gateway: RunningGateway, joined: Joined) -> None:
    async with serve_rehearsal() as server, joined("ada") as ada, anyio.create_task_group() as tasks:
        ended = anyio.Event()

        async def run() -> None:
            await run_agent(config(gateway, server.base_url))
            ended.set()

        tasks.start_soon(run)
        with anyio.fail_after(PATIENCE_SECONDS):
            await until(lambda: "coder" in ada.peers)
            answer = await ada.ask("chat", {"text": "Hello?"}, to="coder", answer="chat", timeout_seconds=60)
            assert answer.body["text"]
            await ada.send("participant/shutdown", {}, to="coder")
            await ended.wait()


async def test_a_restarted_agent_continues_and_reports_unknown_figures(start_agent: StartAgent, tmp_path: Path) -> None:
    path = tmp_path / "coder.sqlite"
    async with start_agent(store=SqliteStore(path)) as s:
        await s.ask("My name is Ada Lovelace.")
        tokens = s.reported[-1]["tokens"]
    async with start_agent(store=SqliteStore(path)) as s:
        status = await s.status()
        assert "tokens" not in status
        assert status["messages_in_context"] == 2
        assert status["context"]["reason"] == "restarted"
        assert status["context"]["last_reported"]["tokens"] == tokens
        answer = await s.ask("What is my name?")
        assert "Ada Lovelace" in answer
        assert s.statuses[-1]["context"]["basis"] == "reported"
        assert s.statuses[-1]["messages_in_context"] == 4


async def test_a_restart_closes_a_tool_call_without_result(start_agent: StartAgent, tmp_path: Path) -> None:
    path, begun = tmp_path / "coder.sqlite", anyio.Event()

    async def wait_for_ever() -> None:
        """Never comes back."""
        begun.set()
        await anyio.sleep_forever()

    async with start_agent(store=SqliteStore(path), tools=[wait_for_ever]) as s:
        await s.send_chat("call wait_for_ever with {}")
        with anyio.fail_after(PATIENCE_SECONDS):
            await begun.wait()
        copy = tmp_path / "copy.sqlite"
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)  # the file that a process killed now leaves
    async with start_agent(store=SqliteStore(copy), tools=[wait_for_ever]) as s:
        assert await s.ask("What happened?")
        results = [m["content"] for m in s.main_requests[-1].body["messages"] if m["role"] == "tool"]
        assert results == [RESTARTED_RESULT]
        assert s.main_requests[-1].status == 200


async def test_a_reply_that_a_killed_process_had_is_sent_although_its_call_is_pruned(
    start_agent: StartAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copy, made = tmp_path / "coder.sqlite", tmp_path / "copy.sqlite", anyio.Event()
    make = ConversationAnswer.make

    async def make_and_be_killed(answer: ConversationAnswer) -> Any:
        await make(answer)
        made.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(ConversationAnswer, "make", make_and_be_killed)
    async with start_agent(store=SqliteStore(path)) as s:
        question = await s.send_chat("What is known about water?")
        with anyio.fail_after(PATIENCE_SECONDS):
            await made.wait()
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
            target.execute("DELETE FROM calls")
            target.commit()
    monkeypatch.undo()
    async with start_agent(store=SqliteStore(copy)) as s:
        await until(lambda: s.agent.conversation.history.items[-1].role == "assistant")
        await until(lambda: s.agent._runtime.inbox.is_idle and s.agent._runtime.inbox.current is None)
        assert s.main_requests == []
        await until(lambda: s.recorder.sent_by("coder", "chat"))
        (answer,) = s.recorder.sent_by("coder", "chat")
        assert "failure" not in answer.body
        assert answer.body["text"] == s.agent.conversation.history.items[-1].content
        (receipt,) = await s.ada.receipts("coder", question.id)
        assert receipt.state == "answered"


# -- hostile peers -----------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["text", "reason", "timeout_seconds", "fields", "direction", "entries", "target_tokens", "method", "status"]


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    values: dict[str, Any] = {
        "protocol": "mew/v0.4",
        "id": draw(st.text(max_size=4)),
        "ts": "t",
        "from": draw(st.sampled_from(["bob", "coder", "system:gateway", ""])),
        "kind": draw(st.sampled_from(sorted(PAYLOADS.keys() - {"participant/shutdown", "participant/pause"}))),
        "payload": draw(st.none() | st.dictionaries(st.sampled_from(KEYS), JSON)),
        "to": draw(st.sampled_from([[], ["coder"], ["bob"]])),
        "correlation_id": draw(st.lists(st.text(max_size=4), max_size=2)),
        "context": draw(st.text(max_size=4)),
    }
    return Envelope.model_validate(values)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(received=st.lists(envelopes(), min_size=1, max_size=15))
async def test_nothing_a_peer_sends_ends_an_agent(gateway: RunningGateway, received: list[Envelope]) -> None:
    async with (
        rehearsing() as (server, model),
        Agent(config(gateway, server.base_url, context_token_limit=8192), model) as agent,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(agent.run)
        for envelope in received:
            await agent.dispatcher.dispatch(envelope)
        async with joined_at(gateway) as ada:
            answer = await ada.ask("chat", {"text": "Alive?"}, to="coder", answer="chat", timeout_seconds=60)
            assert answer.body["text"]
        tasks.cancel_scope.cancel()
