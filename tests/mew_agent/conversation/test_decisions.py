"""When the policy is asked, and when its decisions are carried out; the model is real HTTP."""

from collections.abc import Callable

import pytest
from mew_protocol.payloads.participant import Compact, Forget

from mew_agent.context.policy import MEW
from mew_agent.context.policy.definition import StopRule
from mew_agent.context.policy.threshold import Condition
from mew_agent.model.interface import Window
from tests.support.conversation_driver import ConversationDriver, StartConversation, fill, ignore


async def asked_once(driver: ConversationDriver, question: str) -> None:
    """Ask a question without carrying out pending decisions."""

    async def prepare() -> None:
        await driver.conversation.state.add_user_message(question, sender="ada", envelope_id="q")

    await driver.conversation.begin_turn()
    await driver.conversation.call(ignore, prepare)
    driver.conversation.end_turn()


async def nearly_full(driver: ConversationDriver, text: Callable[[int], str]) -> None:
    """Take three turns, after which the policy has decided to compact."""
    await driver.turn("One.")
    await driver.turn("Two.")
    await asked_once(driver, text(200))
    assert "near_limit" in driver.words


NEARLY_FULL = ((100, 10, 110), (200, 10, 210), (1900, 10, 1910), (50, 10, 60))


async def test_a_decided_compaction_waits_for_the_end_of_the_turn(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation(window_tokens=2048, fixed_usage=NEARLY_FULL) as driver:
        await nearly_full(driver, text)
        assert "compacting" not in driver.words
        await driver.conversation.apply_pending()
        assert driver.words.count("compacting") == 1
        await driver.conversation.apply_pending()
        assert driver.words.count("compacting") == 1


@pytest.mark.parametrize("make_room", ["compact", "forget"])
async def test_a_control_that_makes_room_cancels_a_decided_compaction(
    start_conversation: StartConversation, text: Callable[[int], str], make_room: str
) -> None:
    async with start_conversation(window_tokens=2048, fixed_usage=NEARLY_FULL) as driver:
        await nearly_full(driver, text)
        conversation = driver.conversation
        if make_room == "compact":
            assert not (await conversation.compact(Compact())).skipped
        else:
            assert await conversation.forget(Forget(direction="oldest", entries=2))
        words = list(driver.words)
        await conversation.apply_pending()
        assert driver.words == words, "nothing is due any more"


async def test_a_request_that_would_not_fit_is_compacted_first(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation(window_tokens=2048) as driver:
        await fill(driver, text, below=0.6)
        assert "compacting" not in driver.words
        await driver.turn(text(700))
        assert "compacting" in driver.words
        assert driver.conversation.tracker.compactions == 1
        last = driver.conversation.tracker.last_compaction
        assert last is not None
        assert last.trigger == "would_overflow"
        assert all(request.status == 200 for request in driver.server.requests)


async def test_a_new_window_changes_the_threshold_at_once(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        await driver.turn("One.")
        tokens = driver.now.tokens
        await driver.conversation.change_window(Window(4000, "loaded", "server"))
        status = driver.statuses[-1]
        assert (status.tokens, status.max_tokens) == (tokens, 4000)
        assert status.context is not None
        assert (status.context.compact_at_tokens, status.context.max_tokens_basis) == (3600, "loaded")
        count = len(driver.statuses)
        await driver.conversation.change_window(Window(4000, "loaded", "server"))
        assert len(driver.statuses) == count


async def test_a_server_that_truncates_the_prompt_is_reported(start_conversation: StartConversation) -> None:
    async with start_conversation(
        window=8192, fixed_usage=[(2000, 20, 2020), (1200, 20, 1220), (1250, 20, 1270)]
    ) as driver:
        for number in range(3):
            await driver.turn(f"Question {number}?")
    assert driver.words == ["active", "truncated_by_server", "active"]


async def test_a_prompt_that_stands_still_teaches_the_window_and_is_compacted(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    usage = [(400 * n, 20, 400 * n + 20) for n in range(1, 5)]
    usage += [(prompt, 20, prompt + 20) for prompt in (1605, 1611, 1607, 1604, 1609)]
    async with start_conversation(window=8192, fixed_usage=usage) as driver:
        for _ in usage[:-1]:
            await driver.turn(text(180))
        assert "truncated_by_server" not in driver.words
        await driver.turn(text(180))
        assert "truncated_by_server" in driver.words
        assert "compacted" in driver.words
        assert driver.now.max_tokens == 1609


async def test_a_policy_clears_the_context_before_a_request(start_conversation: StartConversation) -> None:
    is_large = Condition(figure="used", op="gt", tokens=1000)
    clearing = StopRule(action="clear", phase="pre_request", reason="too large", when=(is_large,))
    policy = MEW.model_copy(update={"name": "clearing", "rules": (clearing,)})
    async with start_conversation(policy=policy, fixed_usage=((1900, 10, 1910), (50, 10, 60))) as driver:
        await driver.turn("One.")
        await driver.turn("Two.")
        items = driver.conversation.history.items
        assert [(item.role, item.notice) for item in items] == [("user", True), ("user", False), ("assistant", False)]
        assert items[1].content == "Two."
        assert "cleared:too large" in driver.words
