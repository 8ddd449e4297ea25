"""What an agent spends for one sender within an hour: the limit, the refusal, what people see, and restarts."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from mew_agent.agent.budgets import SenderBudgets
from mew_agent.agent.inbox import QUEUED
from mew_agent.context.sqlite_store import MemoryStore, SqliteStore
from mew_agent.errors import ChatRefused, NoAnswer
from tests.support.agents import StartAgent
from tests.support.waiting import PATIENCE_SECONDS, until

SMALL: dict[str, Any] = {"loop_limits": {"tokens_per_hour": 50}}
HOUR = 3_600.0


class Clock:
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


async def test_a_spent_budget_is_free_again_when_its_hour_is_over() -> None:
    clock = Clock()
    budgets = SenderBudgets(100, MemoryStore(), clock=clock)
    await budgets.record("ada", 60)
    clock.now += 600
    await budgets.record("ada", 40)
    await budgets.record("bob", 99)
    assert budgets.refusal("bob") is None
    problem = budgets.refusal("ada")
    assert problem is not None
    assert problem.startswith(
        "100 of 100 tokens per hour are spent for ada; next messages are answered from 2027-01-15T"
    )
    (wait,) = budgets.waits
    assert (wait.kind, wait.peer, wait.what) == ("budget", "ada", problem)
    seconds = budgets.seconds_until_next()
    assert seconds is not None
    clock.now += seconds - 61
    assert budgets.refusal("ada") is not None
    clock.now += 61
    assert (budgets.refusal("ada"), budgets.waits, budgets.seconds_until_next()) == (None, (), None)
    assert [(one.participant, one.tokens) for one in budgets.reported] == [("bob", 99), ("ada", 40)]


async def test_calls_without_a_report_are_said_and_not_counted_as_zero() -> None:
    budgets = SenderBudgets(100, MemoryStore())
    await budgets.record("ada", 0, 2)
    await budgets.record("bob", 0)
    (one,) = budgets.reported
    assert (one.participant, one.tokens, one.unreported_calls) == ("ada", None, 2)
    await budgets.record("ada", 100, 1)
    assert "(3 more calls reported no tokens)" in (budgets.refusal("ada") or "")


async def test_a_clock_that_was_set_back_frees_no_budget_and_keeps_none_forever() -> None:
    clock = Clock()
    budgets = SenderBudgets(100, MemoryStore(), clock=clock)
    await budgets.record("ada", 100)
    clock.now -= 10 * HOUR
    assert budgets.refusal("ada") is not None
    await budgets.record("ada", 1)
    clock.now += HOUR + 60
    assert budgets.refusal("ada") is None


async def test_a_restart_forgets_no_spending() -> None:
    store = MemoryStore()
    await SenderBudgets(100, store).record("ada", 100)
    again = SenderBudgets(100, store)
    await again.load()
    assert again.refusal("ada") is not None


async def test_spending_counts_although_its_store_cannot_be_used(tmp_path: Path) -> None:
    budgets = SenderBudgets(100, SqliteStore(tmp_path))
    await budgets.load()
    await budgets.record("ada", 100)
    assert budgets.refusal("ada") is not None


@pytest.mark.parametrize(
    "value", [[1], "text", {"ada": 5}, {"ada": [[1, 2]]}, {"ada": [[1, "x", 0]]}, {"ada": [[30_000_000, -500, 0]]}]
)
async def test_stored_spending_of_another_form_is_ignored_with_a_warning(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    await store.keep_value("budgets", value)
    budgets = SenderBudgets(100, store)
    await budgets.load()
    assert "budgets not loaded" in caplog.text
    assert (budgets.refusal("ada"), budgets.reported) == (None, ())
    await budgets.record("ada", 100)
    assert budgets.refusal("ada") is not None


async def test_a_sender_that_spent_its_budget_is_refused_and_others_are_answered(
    start_agent: StartAgent, joined: Any, tmp_path: Path
) -> None:
    settings = {**SMALL, "store": tmp_path / "coder.db"}
    async with start_agent(agent=settings) as s, joined("bob") as bob:
        await s.ada.ask("chat", {"text": "What is the tide?"}, to="coder", answer="chat")
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(ChatRefused, match="of 50 tokens per hour are spent"):
            await s.ada.ask("chat", {"text": "And now?"}, to="coder", answer="chat")
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(NoAnswer, match="next messages are answered from"):
            await s.ada.ask_agent("coder", "Please?")
        assert (await bob.ask("chat", {"text": "May I?"}, to="coder", answer="chat")).body["text"]
        calls = len(s.main_requests)
        status = await s.status()
        await until(lambda: len(s.agent.conversation.tracker.waiting) == 2)
    assert calls == 2
    budget = [one for one in status["context"]["waiting"] if one["kind"] == "budget"]
    assert "ada" in [one["peer"] for one in budget]
    (spent, *_) = status["context"]["spent_for"]
    assert spent["tokens"] >= 50
    async with start_agent(agent=settings) as s:
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(ChatRefused):
            await s.ada.ask("chat", {"text": "After a restart?"}, to="coder", answer="chat")
        assert not s.main_requests


async def test_chats_that_waited_are_refused_once_the_budget_is_spent(start_agent: StartAgent) -> None:
    answers: list[str] = []
    async with start_agent(agent=SMALL) as s:

        async def ask(number: int) -> None:
            answer = await s.ada.ask("chat", {"text": f"Question {number}?"}, to="coder", answer="chat")
            answers.append(str(answer.body["text"]))

        await s.ada.send("participant/pause", {}, to="coder")
        await until(lambda: s.agent.messenger.is_paused)
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(ask, number)
                await until(lambda: len(s.agent._runtime.inbox.in_state(*QUEUED)) == 4)
                await s.ada.send("participant/resume", {}, to="coder")
        assert len(s.main_requests) == 1
    assert sum(text.startswith("I do not answer this message:") for text in answers) == 3
