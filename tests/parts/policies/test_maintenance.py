"""Idle maintenance: when it is due, which tools run, and how it ends; the model is real HTTP."""

from typing import Any

import pytest

from mew_agent.agent.turn import NOT_AVAILABLE, run_maintenance
from mew_agent.parts.policies.presets import DOMINDS_V3
from tests.support.conversation_driver import StartConversation

NOTED = {"text": "Noted."}
LARGE = (150_000, 10, 150_010)


def calling(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


async def test_without_a_due_prompt_no_maintenance_runs(start_conversation: StartConversation) -> None:
    async with start_conversation(policy=DOMINDS_V3, window=200_000, fixed_usage=((50_000, 10, 50_010),)) as driver:
        await driver.turn("One.")
        assert not await driver.conversation.needs_maintenance()
        assert len(driver.server.requests) == 1


async def test_the_mew_policy_needs_no_maintenance(start_conversation: StartConversation) -> None:
    async with start_conversation(fixed_usage=((7400, 10, 7410),)) as driver:
        await driver.turn("One.")
        assert not await driver.conversation.needs_maintenance()


@pytest.mark.parametrize("usage_after", [LARGE, None])
async def test_one_due_prompt_causes_one_call(start_conversation: StartConversation, usage_after: Any) -> None:
    options: dict[str, Any] = {"script": (NOTED, NOTED), "fixed_usage": (LARGE, usage_after)}
    async with start_conversation(policy=DOMINDS_V3, window=200_000, **options) as driver:
        await driver.turn("One.")
        assert await driver.conversation.needs_maintenance()
        await run_maintenance(driver.conversation, max_iterations=3)
        assert not await driver.conversation.needs_maintenance()
        roles = [(item.role, item.notice) for item in driver.conversation.history.items]
        assert roles == [("user", False), ("assistant", False), ("user", True), ("assistant", False)]


async def test_only_context_tools_run_during_maintenance(start_conversation: StartConversation) -> None:
    script = (NOTED, calling("look_up"), calling("add_reminder", '{"content": "The pier."}'), NOTED)
    async with start_conversation(policy=DOMINDS_V3, window=200_000, script=script, fixed_usage=(LARGE,) * 2) as driver:
        await driver.turn("One.")
        assert await driver.conversation.needs_maintenance()
        await run_maintenance(driver.conversation, max_iterations=5)
        results = [item.content for item in driver.conversation.history.items if item.role == "tool"]
        assert results == [f"Error: {NOT_AVAILABLE}", "Kept as r1."]


async def test_maintenance_ends_after_the_maximum_of_calls(start_conversation: StartConversation) -> None:
    script = (NOTED, *[calling("look_up")] * 9)
    async with start_conversation(policy=DOMINDS_V3, window=200_000, script=script, fixed_usage=(LARGE,) * 9) as driver:
        await driver.turn("One.")
        assert await driver.conversation.needs_maintenance()
        await run_maintenance(driver.conversation, max_iterations=2)
        assert len(driver.server.requests) == 3
        assert driver.conversation.history.open_calls() == frozenset()


async def test_a_failed_maintenance_call_changes_nothing(start_conversation: StartConversation) -> None:
    async with start_conversation(policy=DOMINDS_V3, window=200_000, script=(NOTED,), fixed_usage=(LARGE,)) as driver:
        await driver.turn("One.")
        driver.server.change(status=500)
        assert await driver.conversation.needs_maintenance()
        await run_maintenance(driver.conversation, max_iterations=2)
        assert driver.now.tokens == 150_010
        assert driver.now.status == "model_error"
        assert driver.conversation.state.answering_turn is None
