"""The view of a context for programs: unknown figures are None under every policy."""

import pytest

from mew_agent.context.policy import MEW
from mew_agent.conversation.context_view import ContextView
from mew_agent.parts.policies.presets import DOMINDS_V1, LMSTUDIO, TACHIKOMA
from tests.support.conversation_driver import StartConversation


async def test_without_usage_every_figure_is_unknown(start_conversation: StartConversation) -> None:
    async with start_conversation(usage_on="none") as driver:
        gauge = ContextView(driver.conversation)
        for _ in range(2):
            assert gauge.occupancy is None
            assert gauge.has_room_for(1) is None
            assert gauge.tokens_until("near_limit") is None
            assert gauge.tokens_until_redline() is None
            assert await gauge.past() == []
            await driver.turn("One.")


async def test_marks_come_from_the_policy(start_conversation: StartConversation) -> None:
    async with start_conversation(policy=MEW, window=1000, fixed_usage=((780, 20, 800),)) as driver:
        await driver.turn("One.")
        gauge = ContextView(driver.conversation)
        assert gauge.tokens_until("near_limit") == 100
        assert gauge.tokens_until("redlined") is None
        assert gauge.tokens_until_redline() is None
        assert gauge.has_room_for(200) is True
        assert gauge.has_room_for(201) is False
        assert gauge.occupancy is not None
        assert gauge.occupancy.percent == 80.0


async def test_a_prompt_measure_counts_the_prompt(start_conversation: StartConversation) -> None:
    async with start_conversation(policy=DOMINDS_V1, window=1000, fixed_usage=((480, 100, 580),)) as driver:
        await driver.turn("One.")
        assert ContextView(driver.conversation).tokens_until("caution") == 21


@pytest.mark.parametrize("policy", [LMSTUDIO, TACHIKOMA])
async def test_some_policies_keep_the_last_figure_without_usage(
    start_conversation: StartConversation, policy: object
) -> None:
    options = {"policy": policy, "window": 8192, "fixed_usage": ((900, 60, 960), None)}
    async with start_conversation(**options) as driver:
        await driver.turn("One.")
        await driver.turn("Two.")
        occupancy = ContextView(driver.conversation).occupancy
        assert occupancy is not None
        assert occupancy.used_tokens >= 960
