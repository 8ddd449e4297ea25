"""Summaries of an agent over real sockets: bounded, checked, completed, and carried from round to round."""

from collections.abc import Callable

import pytest

from tests.mew_agent.conftest import StartAgent

GOAL = "## Goal and request\n"
RULES = (
    "Never push to main without approval.",
    "The budget is at most 4,200 euros.",
    "You must keep customer names confidential.",
)


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [("silent", "not complete after"), ("endless", "did not end within")],
)
async def test_a_summariser_without_end_blocks_no_chat(
    start_agent: StartAgent, text: Callable[[int], str], behaviour: str, problem: str
) -> None:
    async with start_agent(agent={"summary_timeout_seconds": 0.2}, summary_behaviour=behaviour) as s:
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
