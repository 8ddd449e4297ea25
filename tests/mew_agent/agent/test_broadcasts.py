"""Agents whose model decides about broadcasts: figures and board do not change."""

from collections.abc import Callable
from typing import Any

from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.agent.address_filter import INSTRUCTIONS
from tests.support.conversation_driver import without_spending

StartAgent = Callable[..., Any]
"""`start_agent(...)` of the conftest."""

NOTED, YES, NO = {"text": "Noted."}, {"text": "yes"}, {"text": "no"}


def classifications(driver: Any) -> int:
    start = INSTRUCTIONS.partition("{")[0]
    return sum(str(request.body["messages"][0]["content"]).startswith(start) for request in driver.server.requests)


async def test_a_broadcast_for_others_is_remembered_and_changes_no_figure(
    gateway: RunningGateway, start_agent: StartAgent
) -> None:
    script = (NOTED, NO, NOTED)
    async with start_agent(agent={"answer_broadcasts": "model"}, script=script) as s:
        await s.ask("One.")
        before, board = await s.status(), gateway.board().participants
        said = len(s.recorder.received)
        await s.ada.chat("The north pump stands still, who would have thought?")
        await s.server.wait_until(lambda: classifications(s) == 1 and s.server.requests[-1].is_complete)
        after = await s.status()
        for status in (before, after):
            del status["context"]["spending"]  # the classification cost something, too
            assert status["context"].pop("queued")["messages"] == int(status is after)
        assert after == before
        boards = [
            [without_spending(one.status) for one in entries if one.status is not None and one.status.context]
            for entries in (board, gateway.board().participants)
        ]
        assert boards[0] == boards[1] != []
        assert not [e for e in s.recorder.received[said:] if e.sender == "coder" and e.kind != "participant/status"]
        await s.ask("Two.")
        assert "north pump" in str(s.server.requests[-1].body["messages"])
        roles = [call.role for call in await s.agent.conversation.state.store.calls()]
        assert roles == ["main", "classification", "main"]
        spent = [call.usage.total_tokens for call in await s.agent.conversation.state.store.calls()]
        assert (await s.status())["tokens"] == spent[-1]


async def test_the_model_accepts_a_broadcast_without_a_question_mark(start_agent: StartAgent) -> None:
    async with start_agent(agent={"answer_broadcasts": "model"}, script=(YES, NOTED)) as s:
        chat = await s.ada.chat("Somebody should look after the pump.")
        answer = await s.recorder.first("coder", "chat", about=chat)
        assert answer.body["text"] == "Noted."
        assert "yes" not in str(s.server.requests[-1].body["messages"])


async def test_a_broadcast_cancelled_during_classification_is_not_answered(start_agent: StartAgent) -> None:
    async with start_agent(
        agent={"answer_broadcasts": "model"}, script=(YES, NOTED, NOTED), chunk_delay_seconds=0.2
    ) as s:
        chat = await s.ada.chat("Somebody should look after the pump, and after the long pier, too.")
        await s.server.wait_until(lambda: classifications(s) == 1)
        await s.ada.send("chat/cancel", {"reason": "done"}, correlation_id=(chat.id,))
        await s.ask("One.")
        assert not s.recorder.sent_by("coder", "chat", about=chat)
        assert "pier" not in str(s.main_requests[-1].body["messages"])


async def test_the_model_is_not_asked_by_default_or_with_never(start_agent: StartAgent) -> None:
    async with start_agent(script=(NOTED,) * 3) as s:
        chat = await s.ada.chat("Who is there?")
        await s.recorder.first("coder", "chat", about=chat)
        assert classifications(s) == 0
    async with start_agent(agent={"answer_broadcasts": "never"}, script=(NOTED,) * 3) as s:
        chat = await s.ada.chat("Who is there?")
        await s.ask("One.")
        assert not s.recorder.sent_by("coder", "chat", about=chat)
        assert "Who is there?" in str(s.server.requests[-1].body["messages"])
        assert classifications(s) == 0
