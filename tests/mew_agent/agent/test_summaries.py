"""Summaries of an agent over real sockets: bounded in time and length."""

from collections.abc import Callable

import pytest

from tests.mew_agent.conftest import StartAgent


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
        assert problem in done.body["reason"]
        await s.recorder.first("coder", "chat", about=question)
        assert s.summary_requests[0].is_disconnected
