"""One question and its answer: order of envelopes, tools, cancellation, and model failures."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope

from mew_agent.agent.turn import ConversationAnswer
from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.errors import ChatRefused, NotPermitted
from mew_agent.participant.participant import Participant
from tests.support.agents import AgentDriver
from tests.support.waiting import PATIENCE_SECONDS, until

StartAgent = Callable[..., Any]
"""`start_agent(...)` of the conftest."""


def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a thing"


async def weigh(thing: str) -> int:
    """Weigh something."""
    return len(thing)


async def fail_always(reason: str) -> None:
    """Fails."""
    raise OSError(reason)


def kinds(driver: AgentDriver, question: Any) -> list[str]:
    """The agent's envelopes about a question in order, without statuses and the stream."""
    skipped = ("participant/status", "stream/request", "stream/close")
    return [e.kind for e in driver.recorder.sent_by("coder", about=question) if e.kind not in skipped]


async def test_a_plain_answer_sends_its_envelopes_in_order(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        question = await s.send_chat("What is known about water?")
        answer = await s.recorder.first("coder", "chat", about=question)
        assert kinds(s, question) == [
            "chat/acknowledge",
            "reasoning/start",
            "reasoning/thought",
            "reasoning/conclusion",
            "chat",
        ]
        acknowledged, start, thought, conclusion = (
            s.recorder.sent_by("coder", kind, about=question)[0]
            for kind in ("chat/acknowledge", "reasoning/start", "reasoning/thought", "reasoning/conclusion")
        )
        assert (acknowledged.to, acknowledged.body["status"]) == (("ada",), "processing")
        assert start.body == {"message": question.body["text"], "input": question.body["text"]}
        assert thought.context == conclusion.context == start.id
        assert "cancelled" not in conclusion.body
        assert answer.to == ("ada",)
        # The status precedes the answer, so that every reader of the answer knows the figure.
        status = next(
            e for e in s.recorder.sent_by("coder", "participant/status") if e.body["context"]["basis"] == "reported"
        )
        assert s.recorder.received.index(status) < s.recorder.received.index(answer)


async def test_without_reasoning_envelopes_the_answer_still_comes(start_agent: StartAgent) -> None:
    async with start_agent(agent={"reasoning_enabled": False}) as s:
        question = await s.send_chat("What is known about water?")
        await s.recorder.first("coder", "chat", about=question)
        assert kinds(s, question) == ["chat/acknowledge", "chat"]


async def test_two_questions_under_one_id_are_two_questions(start_agent: StartAgent) -> None:
    """Some clients restart their envelope ids with every start."""
    async with start_agent() as s:
        for number, text in enumerate(("What is known about water?", "And what about stones?")):
            chat = {"text": text}
            twin = Envelope.write("chat", id="ada-1", ts="t", sender="ada", payload=chat, to=("coder",))
            await s.ada.session.client.send(twin)
            await s.recorder.first("coder", "chat", nth=number)
        assert "And what about stones?" in str(s.main_requests[-1].body["messages"])


async def test_an_empty_answer_is_reported_as_empty(start_agent: StartAgent) -> None:
    async with start_agent(script=[{"text": ""}]) as s:
        assert await s.ask("Say nothing.") == "(My model returned an empty answer.)"


async def test_text_with_lone_surrogates_is_repaired(start_agent: StartAgent) -> None:
    def broken() -> str:
        return "half \ud800 a character"

    async with start_agent(tools=[broken]) as s:
        assert "half ? a character" in await s.ask("call broken with {}")
        assert await s.ask("Still there?")


# -- tools -------------------------------------------------------------------------------------------------


async def test_tools_run_and_their_results_reach_the_answer(start_agent: StartAgent) -> None:
    async with start_agent(tools=[look_up, weigh]) as s:
        question = await s.send_chat('call look_up with {"word": "water"}, and call weigh with {"thing": "stone"}')
        answer = await s.recorder.first("coder", "chat", about=question)
        assert "look_up answered: water is a thing" in answer.body["text"]
        assert "weigh answered: 5" in answer.body["text"]
        thoughts = s.recorder.sent_by("coder", "reasoning/thought", about=question)
        tools = [t.body["actionInput"]["tool"] for t in thoughts if t.body["action"] == "tool"]
        assert tools == ["look_up", "weigh"]
        assert [t.body["action"] for t in thoughts][-1] == "respond"
        assert len(s.recorder.sent_by("coder", "reasoning/conclusion", about=question)) == 1
        assert len(s.reported) == 2


async def test_results_enter_in_the_order_of_their_calls(start_agent: StartAgent) -> None:
    ready = anyio.Event()

    async def slow() -> str:
        """Waits for the other tool."""
        await ready.wait()
        return "slow result"

    async def fast() -> str:
        """Returns at once."""
        ready.set()
        return "fast result"

    async with start_agent(tools=[slow, fast]) as s:
        await s.ask("call slow with {}, and call fast with {}")
        sent = s.main_requests[-1].body["messages"]
        assert isinstance(sent, list)
        calls = [call["id"] for message in sent for call in message.get("tool_calls", ())]
        results = [(m["tool_call_id"], m["content"]) for m in sent if m["role"] == "tool"]
        assert results == [(calls[0], "slow result"), (calls[1], "fast result")]


async def test_a_failing_tool_returns_text_to_the_model(start_agent: StartAgent) -> None:
    async with start_agent(tools=[fail_always, look_up]) as s:
        answer = await s.ask('call fail_always with {"reason": "no paper"}, and call look_up with {"wrong": 1}')
        assert "Error: no paper" in answer
        assert "bad arguments for 'look_up'" in str(s.main_requests[-1].body["messages"])


async def test_an_unknown_tool_returns_text_to_the_model(start_agent: StartAgent) -> None:
    script = [{"tool_calls": [{"name": "ghost", "arguments": "{not json"}]}, {"text": "I see."}]
    async with start_agent(tools=[look_up], script=script) as s:
        assert await s.ask("Use it.") == "I see."
        results = [m["content"] for m in s.main_requests[-1].body["messages"] if m["role"] == "tool"]
        assert len(results) == 1
        assert results[0].startswith("Error: ")


async def test_the_asker_learns_of_a_refused_call_that_the_model_conceals(start_agent: StartAgent) -> None:
    def write() -> str:
        """Always refused."""
        raise NotPermitted("coder", "mcp/request")

    problem = "'coder' has no capability that covers 'mcp/request'; add one in space.yaml"
    call = {"tool_calls": [{"name": "write", "arguments": "{}"}]}
    async with start_agent(tools=[write], script=[call, {"text": "Done."}, call, {"text": f"No: {problem}"}]) as s:
        assert await s.ask("Write it.") == f"Done.\n\n[My call of write was refused: {problem}.]"
        assert await s.ask("Write it again.") == f"No: {problem}"


async def test_an_endless_tool_loop_is_stopped(start_agent: StartAgent) -> None:
    script = [{"tool_calls": [{"name": "weigh", "arguments": '{"thing": "x"}'}]}] * 9
    async with start_agent(tools=[weigh], script=script, agent={"max_iterations": 3}) as s:
        assert "stopped after 3 steps" in await s.ask("Go on.")
        assert len(s.main_requests) == 3
        s.server.change(script=())
        assert await s.ask("What is known?")
        assert not s.agent.conversation.history.open_calls()


async def test_a_tool_loop_compacts_before_an_overflow(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    def page(number: int) -> str:
        """A page of a long book."""
        return text(350)

    script = [{"tool_calls": [{"name": "page", "arguments": f'{{"number": {n}}}'}]} for n in range(3)]
    async with start_agent(tools=[page], window_tokens=2300, agent={"system_prompt": "Read."}) as s:
        for _ in range(5):
            await s.ask(text(120))
        s.server.change(script=[*script, {"text": "It is about water."}])
        assert await s.ask("Read three pages.") == "It is about water."
        assert all(request.status == 200 for request in s.server.requests)
        assert s.agent.conversation.tracker.compactions >= 1
        assert not s.agent.conversation.history.open_calls()


# -- cancellation ------------------------------------------------------------------------------------------


async def test_cancelling_stops_the_call_at_the_server_with_one_conclusion(start_agent: StartAgent) -> None:
    async with start_agent(chunk_delay_seconds=5.0) as s:
        question = await s.send_chat("Think for a long time.")
        start = await s.recorder.first("coder", "reasoning/start", about=question)
        await s.server.wait_until(lambda: bool(s.server.requests) and s.server.requests[0].chunks_sent > 0)
        await s.ada.send("reasoning/cancel", {"reason": "never mind"}, context=start.id)
        conclusion = await s.recorder.first("coder", "reasoning/conclusion", about=question)
        assert conclusion.body["cancelled"] is True
        assert conclusion.body["reason"] == "never mind"
        assert conclusion.context == start.id
        with anyio.fail_after(PATIENCE_SECONDS):
            await s.server.wait_until(lambda: s.server.requests[0].is_disconnected)
        closed = await s.recorder.first("coder", "stream/close")
        assert closed.body["reason"] == "cancelled"
        s.server.change(chunk_delay_seconds=0.0)
        assert await s.ask("And now?")
        assert not s.recorder.sent_by("coder", "chat", about=question)
        assert len(s.recorder.sent_by("coder", "reasoning/conclusion", about=question)) == 1


async def test_the_sender_can_cancel_a_running_turn(
    start_agent: StartAgent, joined: Callable[..., Participant]
) -> None:
    async with start_agent(chunk_delay_seconds=5.0, agent={"reasoning_enabled": False}) as s, joined("bob") as bob:
        question = await s.send_chat("Think long.")
        await s.server.wait_until(lambda: bool(s.main_requests) and s.main_requests[0].chunks_sent > 0)
        await bob.send("chat/cancel", {}, to="coder", correlation_id=(question.id,))
        await bob.request_status("coder")
        assert not s.main_requests[0].is_disconnected  # only the sender may cancel
        await s.ada.send("chat/cancel", {"reason": "never mind"}, to="coder", correlation_id=(question.id,))
        await s.server.wait_until(lambda: s.main_requests[0].is_disconnected)
        s.server.change(chunk_delay_seconds=0.0)
        assert await s.ask("And now?")
        assert not s.recorder.sent_by("coder", "chat", about=question)


async def test_a_turn_that_is_cancelled_while_its_answer_is_completed_sends_none(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = ConversationAnswer.make
    async with start_agent() as s:

        async def make_and_be_cancelled(answer: ConversationAnswer) -> Any:
            made = await make(answer)
            with anyio.CancelScope(shield=True):
                await s.ada.send(
                    "chat/cancel", {}, to="coder", correlation_id=(s.agent._runtime.inbox.current.envelope.id,)
                )
                await until(lambda: s.agent._runtime.inbox.current.state == "cancelled")
            return made

        monkeypatch.setattr(ConversationAnswer, "make", make_and_be_cancelled)
        question = await s.send_chat("What is known about water?")
        conclusion = await s.recorder.first("coder", "reasoning/conclusion", about=question)
        assert conclusion.body["cancelled"] is True
        monkeypatch.undo()
        assert await s.ask("And now?")
        assert not s.recorder.sent_by("coder", "chat", about=question)
        (receipt,) = await s.ada.receipts("coder", question.id)
        assert receipt.state == "cancelled"


@pytest.mark.parametrize("who", ["another reasoning", "no context"])
async def test_an_unrelated_cancel_changes_nothing(start_agent: StartAgent, who: str) -> None:
    async with start_agent(chunk_delay_seconds=0.005) as s:
        question = await s.send_chat("Think.")
        await s.recorder.first("coder", "reasoning/start", about=question)
        await s.ada.send("reasoning/cancel", {}, context="another" if who == "another reasoning" else None)
        await s.recorder.first("coder", "chat", about=question)


async def test_cancelling_between_tools_closes_their_calls(start_agent: StartAgent) -> None:
    begun = anyio.Event()

    async def wait_for_ever() -> None:
        """Never returns."""
        begun.set()
        await anyio.sleep_forever()

    async with start_agent(tools=[wait_for_ever, look_up]) as s:
        question = await s.send_chat('call look_up with {"word": "water"}, and call wait_for_ever with {}')
        start = await s.recorder.first("coder", "reasoning/start", about=question)
        with anyio.fail_after(PATIENCE_SECONDS):
            await begun.wait()
        await s.ada.send("reasoning/cancel", {}, context=start.id)
        conclusion = await s.recorder.first("coder", "reasoning/conclusion", about=question)
        assert conclusion.body["reason"] == "cancelled by ada"
        assert await s.ask("What is known?")
        results = [m["content"] for m in s.main_requests[-1].body["messages"] if m["role"] == "tool"]
        assert results[1:] == ["[cancelled before it finished]"]
        assert results[0] in ("water is a thing", "[cancelled before it finished]")


async def test_cancelling_right_after_a_reply_with_calls_leaves_none_open(start_agent: StartAgent) -> None:
    """Peers learn of the reply from the status of the call, and may cancel at once."""
    async with start_agent(tools=[weigh]) as s:
        s.server.change(script=[{"tool_calls": [{"name": "weigh", "arguments": '{"thing": "x"}'}]}] * 50)

        ada: Participant = s.ada

        @ada.on("participant/status")
        async def cancel(status: Envelope) -> None:
            start = s.recorder.sent_by("coder", "reasoning/start")
            if status.body["context"]["basis"] == "reported" and start:
                await ada.send("reasoning/cancel", {}, context=start[-1].id)

        await s.send_chat("Weigh it again and again.")
        await s.recorder.first("coder", "reasoning/conclusion", cancelled=True)
        assert not s.agent.conversation.history.open_calls()


# -- model failures ----------------------------------------------------------------------------------------

FAILURES = [
    ({"status": 500}, "model_error", "My model call failed at {url} (HTTP 500: "),
    ({"status": 401}, "model_unauthorized", "My model refused my key at {url} (HTTP 401: "),
    ({"status": 403}, "model_unauthorized", "My model refused my key at {url} (HTTP 403: "),
    ({"status": 429}, "model_rate_limited", "My model is rate limited at {url} (HTTP 429: "),
    ({"cut_after_chunks": 2}, "model_stream_cut", "My model's answer was cut off at {url} ("),
    (
        {"cut_after_chunks": 2, "cut_style": "end_of_stream"},
        "model_stream_cut",
        "My model's answer was cut off at {url} (",
    ),
]


@pytest.mark.parametrize(("options", "word", "said"), FAILURES)
async def test_a_failed_call_is_reported_in_the_answer_and_the_status(
    start_agent: StartAgent, options: dict[str, Any], word: str, said: str
) -> None:
    async with start_agent() as s:
        await s.ask("One.")
        before = s.reported[-1]
        s.server.change(**options)
        question = await s.send_chat("Two?")
        answer = (await s.recorder.first("coder", "chat", about=question)).body["text"]
        assert answer.startswith(said.format(url=s.server.base_url))
        assert answer.endswith(f"My context is unchanged at {before['tokens']:,} of 8,192 tokens (reported).")
        status = s.statuses[-1]
        assert status["status"] == word
        assert (status["tokens"], status["context"]["basis"]) == (before["tokens"], "reported")
        assert status["context"]["call_id"] == before["context"]["call_id"]
        conclusions = s.recorder.sent_by("coder", "reasoning/conclusion", about=question)
        assert len(conclusions) == 1
        s.server.change(status=None, cut_after_chunks=None)
        assert await s.ask("Three.")
        assert s.statuses[-1]["status"] == "active"


async def test_an_unreachable_model_is_reported_with_its_address(start_agent: StartAgent, free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}/v1"
    async with start_agent(agent={"base_url": url}) as s:
        answer = await s.ask("Hello?")
        assert answer == (
            f"I could not reach my model at {url} (connection refused). "
            "The size of my context is not known (no call yet)."
        )
        assert s.statuses[-1]["status"] == "model_unreachable"
        assert "tokens" not in s.statuses[-1]
        assert (await s.status())["status"] == "model_unreachable"


async def test_a_message_larger_than_the_window_is_reported_and_removed(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(window_tokens=2048) as s:
        s.agent._runtime.headroom.mode = "off"  # the agent tries to read it
        for _ in range(3):
            await s.ask(text(100))
        with pytest.raises(ChatRefused, match="of the window of 2,048 fit, even after a compaction"):
            await s.ask(text(3000))
        assert await s.ask("What is known about water?")
        assert s.main_requests[-1].status == 200
        assert s.main_requests[-1].prompt_tokens < 2048
        assert s.statuses[-1]["status"] == "active"


async def test_a_failed_summary_stops_no_turn(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    async with start_agent(window_tokens=2048, summary_behaviour="fail") as s:
        while (s.reported[-1]["tokens"] if s.reported else 0) < 1500:
            await s.ask(text(100))
        assert "Report" in await s.ask(text(600))
        assert s.statuses[-1]["context"]["last_compaction"]["summary_by"] == "extract"


async def test_an_unexpected_overflow_is_compacted_and_repeated(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(window_tokens=2048, agent={"context_token_limit": None}, report_window=False) as s:
        answers = []
        while not any(request.status == 400 for request in s.server.requests):
            answers.append(await s.ask(text(150)))
        assert all("Report" in answer for answer in answers)
        assert s.statuses[-1]["max_tokens"] == 2048
        assert s.statuses[-1]["context"]["max_tokens_basis"] == "loaded"
        assert s.statuses[-1]["context"]["last_compaction"]["trigger"] == "overflow_error"


async def test_an_internal_failure_still_gets_an_answer(
    start_agent: StartAgent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Here another process damages the session's file."""
    path = tmp_path / "session.sqlite"
    async with start_agent(store=SqliteStore(path)) as s:
        await s.ask("One?")
        with closing(sqlite3.connect(path)) as database:
            database.execute("ALTER TABLE calls RENAME TO elsewhere")
            question = await s.send_chat("Two?")
            answer = await s.recorder.first("coder", "chat", about=question)
            assert answer.body["text"].startswith(
                "An internal error occurred (StoreUnusable). Please ask again; my log has the details."
            )
            assert len(s.recorder.sent_by("coder", "reasoning/conclusion", about=question)) == 1
            database.execute("ALTER TABLE elsewhere RENAME TO calls")
        assert "inside me failed" not in await s.ask("Three?")
        assert "a turn failed" in caplog.text


@pytest.mark.parametrize("place", ["add_remark", "begin"])
async def test_a_failure_before_the_question_still_gets_an_answer(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise OSError("no space left")

    async with start_agent() as s:
        await s.ada.chat("The pump is old.")
        with monkeypatch.context() as patch:
            patch.setattr(ConversationAnswer, place, fail)
            answer = await s.ada.ask("chat", {"text": "Which pump?"}, to="coder", answer="chat")
            assert answer.body["failure"]["code"] == "failed"
            assert answer.body["text"].startswith("An internal error occurred (OSError).")
        assert "internal error" not in await s.ask("And now?")


async def test_an_answer_is_sent_although_its_cost_is_unreadable(start_agent: StartAgent, tmp_path: Path) -> None:
    path = tmp_path / "coder.db"
    async with start_agent(agent={"store": path}) as s:
        payload = {"text": "Hello?", "session": "one"}
        await s.ada.ask("chat", payload, to="coder", answer="chat")
        (session,) = tmp_path.glob("coder.db~*[0-9a-f]")
        with closing(sqlite3.connect(session)) as database, database:
            database.execute("UPDATE calls SET record = '{'")
        answer = await s.ada.ask("chat", payload, to="coder", answer="chat")
        assert answer.body["text"]
        assert "turn" not in answer.body
