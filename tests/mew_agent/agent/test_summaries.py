"""Summaries of an agent over real sockets: bounded, checked, completed, and carried from round to round."""

from collections.abc import Callable
from typing import Any

import pytest

from mew_agent.parts.rehearsal import RecordedRequest, ScriptedReply, ScriptedToolCall
from tests.support.agents import StartAgent
from tests.support.waiting import PATIENCE_SECONDS


def look_up(q: str) -> str:
    """Look something up."""
    return q


def cached_of(request: RecordedRequest) -> int:
    """The cached prompt tokens that the server reported."""
    reported: Any = request.reported
    return int(reported["prompt_tokens_details"]["cached_tokens"])


GOAL = "## Goal and request\n"
RULES = (
    "Never push to main without approval.",
    "The budget is at most 4,200 euros.",
    "You must keep customer names confidential.",
)


@pytest.mark.parametrize(
    ("behaviour", "seconds", "problem"),
    [("silent", 0.2, "not complete after"), ("endless", PATIENCE_SECONDS, "did not end within")],
)
async def test_a_summariser_without_end_blocks_no_chat(
    start_agent: StartAgent, text: Callable[[int], str], behaviour: str, seconds: float, problem: str
) -> None:
    async with start_agent(agent={"summary_timeout_seconds": seconds}, summary_behaviour=behaviour) as s:
        for _ in range(4):
            await s.ask(text(150))
        sent = await s.control("compact")
        question = await s.send_chat("And now?")
        done = await s.recorder.first("coder", "participant/compact-done", about=sent)
        assert problem in done.body["summary_problem"]
        assert done.body["summary_by"] == "extract"
        await s.recorder.first("coder", "chat", about=question)
        assert len(s.summary_requests) == 1
        assert s.summary_requests[0].is_disconnected


async def test_a_call_with_implausible_usage_has_no_cost(start_agent: StartAgent) -> None:
    agent = {"models": {"rehearsal": {"price": {"input": 2.0, "output": 8.0, "currency": "EUR"}}}}
    async with start_agent(agent=agent, fixed_usage=(None, (900, 50, 40), (900, 50, 950))) as s:
        for question in ("One?", "Two?", "Three?"):
            await s.ask(question)
        calls = await s.agent.conversation.state.store.calls()
        assert [(call.usage is None, call.amount) for call in calls] == [(True, None), (True, None), (False, 0.0022)]


async def test_a_summary_request_continues_the_conversation_that_the_provider_caches(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    price = {"input": 2.0, "cached_input": 0.5, "output": 8.0, "currency": "EUR"}
    agent = {"models": {"rehearsal": {"price": price}}}
    async with start_agent(agent=agent, tools=[look_up], window_tokens=32_000, prefix_cache=True) as s:
        for _ in range(8):
            await s.ask(text(900))
        sent = await s.control("compact")
        done = await s.recorder.first("coder", "participant/compact-done", about=sent)
        (summary,), call = s.summary_requests, s.main_requests[-1]
        asked: Any = summary.body
        called: Any = call.body
        *before, closing = asked["messages"]
        assert before == called["messages"][: len(before)]
        assert asked["tools"] == called["tools"]
        assert "Summarise the conversation above" in closing["content"]
        cost, prompt, output = done.body["cost"], summary.prompt_tokens, summary.completion_tokens or 0
        cached = cached_of(summary)
        assert cached >= 0.9 * prompt
        assert (cost["calls"], cost["prompt_tokens"], cost["completion_tokens"]) == (1, prompt, output)
        assert cost["cached_tokens"] == cached
        assert cost["freed_per_token"] == round(done.body["freed_tokens"] / (prompt + output), 3)
        assert cost["amount"] == pytest.approx(((prompt - cached) * 2 + cached * 0.5 + output * 8) / 1e6)
        assert cost["currency"] == "EUR"
        assert (await s.status())["context"]["last_compaction"]["cost"] == cost
        await s.ask("And now?")
        lost = cached_of(s.main_requests[-2]) - cached_of(s.main_requests[-1])
        assert cost["cache_lost_tokens"] == pytest.approx(lost, abs=512), "projected"


async def test_a_summary_cites_the_messages_of_a_continued_conversation(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(window_tokens=32_000) as s:
        first = await s.send_chat(f"Please keep the stations in order. {text(600)}")
        await s.recorder.first("coder", "chat", about=first)
        for _ in range(4):
            await s.ask(text(600))
        await s.recorder.first("coder", "participant/compact-done", about=await s.control("compact"))
        await s.ask("And now?")
        sent = str(s.main_requests[-1].body["messages"])
        assert f"[{first.id}]" in sent
        assert "[m1]" not in sent


async def test_a_refused_summary_is_asked_for_once_more_as_a_transcript(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(summary_script=("",)) as s:
        for _ in range(4):
            await s.ask(text(150))
        done = await s.recorder.first("coder", "participant/compact-done", about=await s.control("compact"))
        assert (done.body["summary_by"], done.body["cost"]["calls"]) == ("model", 2)
        assert "<message id=" in str(s.summary_requests[1].body["messages"])


@pytest.mark.parametrize("behaviour", ["extract", "silent", "endless", "fail", "empty"])
async def test_tasks_and_queued_chats_continue_after_any_compaction(
    start_agent: StartAgent, text: Callable[[int], str], behaviour: str
) -> None:
    def survey() -> str:
        """Survey the stations."""
        return text(250)

    rounds = (*[ScriptedReply(tool_calls=(ScriptedToolCall(name="survey"),))] * 4, ScriptedReply(text="Surveyed."))
    async with start_agent(
        agent={"summary_timeout_seconds": 0.2, "board_tools": False, "between_steps": "never"},
        tools=[survey],
        script=rounds * 3,
        window_tokens=3000,
        summary_behaviour=behaviour,
    ) as s:
        chats = [await s.send_chat(f"Survey number {number}.") for number in range(3)]
        await s.control("compact")
        for chat in chats:
            answer = await s.recorder.first("coder", "chat", about=chat)
            assert answer.body["text"] == "Surveyed."
        assert len(s.main_requests) == len(rounds) * 3, "no call more, and none less"
        await s.recorder.first("coder", "participant/compact-done", about=await s.control("compact"))
        await s.status()
        assert len(s.main_requests) == len(rounds) * 3, "an idle agent stays idle"
        assert s.recorder.words("coder").count("compacted") >= 2


JUNK = {
    "ok": "ok",
    "a refusal": "I'm sorry, but I can't help with summarising this conversation.",
    "a pizza order": f"{GOAL}One large pizza Margherita with extra cheese for Elm Street, delivered hot by Luigi.",
    "a loop": f"{GOAL}{'The station measured water. ' * 12}",
    "an answer": "Station 3 measured 40 units. Is there anything else I can do for you?",
    "template tokens": f"{GOAL}<|im_start|>assistant The station measured water.<|im_end|>",
    "control characters": f"{GOAL}\x1b[31mThe station measured water.\x1b[0m",
    "an unclosed think": f"{GOAL}<think>The station measured water, so what follows from this?",
    "a cut text": f"{GOAL}The station measured water and the",
}


@pytest.mark.parametrize("junk", JUNK)
async def test_junk_never_replaces_the_conversation(
    start_agent: StartAgent, text: Callable[[int], str], junk: str
) -> None:
    async with start_agent(summary_script=(JUNK[junk], JUNK[junk])) as s:
        await s.ask(f"{RULES[0]} {text(100)}")
        for _ in range(3):
            await s.ask(text(100))
        sent = await s.control("compact")
        done = await s.recorder.first("coder", "participant/compact-done", about=sent)
        assert (done.body["skipped"], done.body["summary_by"]) == (False, "extract")
        first, second = (str(request.body["messages"]) for request in s.summary_requests)
        assert "A first attempt was refused" not in first
        assert f"A first attempt was refused: {done.body['summary_problem']}" in second
        await s.ask("And now?")
        sent_text = str(s.main_requests[-1].body["messages"])
        assert "No model wrote this summary" in sent_text
        assert RULES[0] in sent_text
        assert JUNK[junk][:40] not in sent_text.replace("\\n", "\n") or junk == "ok"


async def test_a_second_attempt_may_pass(start_agent: StartAgent, text: Callable[[int], str]) -> None:
    async with start_agent(summary_script=("ok",)) as s:
        for _ in range(4):
            await s.ask(text(100))
        sent = await s.control("compact")
        done = await s.recorder.first("coder", "participant/compact-done", about=sent)
        assert (done.body["summary_by"], len(s.summary_requests)) == ("model", 2)
        assert "summary_problem" not in done.body


async def test_rules_survive_five_rounds_of_a_forgetful_summariser(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(summary_behaviour="quarter", window_tokens=16_000) as s:
        for rule in RULES:
            await s.ask(f"{text(60)} {rule} {text(60)}")
        for _ in range(5):
            for _ in range(3):
                await s.ask(text(100))
            sent = await s.control("compact")
            done = await s.recorder.first("coder", "participant/compact-done", about=sent)
            assert done.body["skipped"] is False
        await s.ask("And now?")
        summary = next(
            str(message["content"])
            for message in s.main_requests[-1].body["messages"]  # type: ignore[attr-defined]
            if "[Summary of the conversation so far]" in str(message["content"])
        )
        assert [rule for rule in RULES if rule not in summary] == []
