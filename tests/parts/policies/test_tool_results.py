"""Tool results before they enter: given room or refused, each after the ones before it."""

import pytest

from mew_agent.context.history import History
from mew_agent.context.policy import MEW, CompactAction, Policy
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.conversation import make_room_for_results, withhold_results
from mew_agent.conversation.conversation_events import ConversationEvents
from mew_agent.errors import PolicyStopped
from mew_agent.model.interface import ToolCall
from mew_agent.parts.policies.presets import LMSTUDIO
from mew_agent.tokens.projection import Calibration, features
from mew_agent.tools.results import ToolResult
from tests.support.conversation_driver import TOOL, StartConversation

CALLS = (ToolCall("a", "fetch", "{}"), ToolCall("b", "fetch", "{}"))


class Scene:
    """An agent with an empty history, whose compactions change nothing."""

    def __init__(self, window: int, policy: Policy = LMSTUDIO) -> None:
        self.tracker = Tracker(History(), policy, resolve_window(window), "model")
        self.compactions: list[CompactAction] = []
        self.state = ContextState(self.tracker, MemoryStore(), ConversationEvents())

    async def compact(self, action: CompactAction) -> bool:
        self.compactions.append(action)
        return False

    async def make_room(self, calls: tuple[ToolCall, ...], results: dict[str, ToolResult]) -> None:
        await make_room_for_results(calls, results, self.state, self.compact)


TEXT = "water " * 300
RESULT = ToolResult(TEXT)
TOKENS = Calibration().project(features(TEXT))


async def test_results_that_fit_together_stay_unchanged() -> None:
    scene = Scene(4096)
    results = {"a": RESULT, "b": RESULT}
    await scene.make_room(CALLS, results)
    assert (results, scene.compactions) == ({"a": RESULT, "b": RESULT}, [])


async def test_a_second_result_counts_the_first() -> None:
    """Each result fits alone, but both do not. A compaction that changes nothing is tried three times."""
    scene = Scene(TOKENS + 10)
    results = {"a": RESULT, "b": RESULT}
    with pytest.raises(PolicyStopped, match="still over the limit after 3 restarts"):
        await scene.make_room(CALLS, results)
    assert len(scene.compactions) == 3
    assert results["a"] == RESULT
    assert results["b"].is_error
    assert results["b"].text.startswith("a result of about")


async def test_a_result_larger_than_the_window_is_refused_without_a_compaction() -> None:
    scene = Scene(TOKENS - 1)
    with pytest.raises(PolicyStopped, match="the tool result alone exceeds the context window"):
        await scene.make_room(CALLS[:1], {"a": RESULT})
    assert scene.compactions == []
    results = {"a": RESULT}
    await Scene(TOKENS).make_room(CALLS[:1], results)
    assert results == {"a": RESULT}


async def test_policies_without_a_rule_for_results_leave_them_unchanged() -> None:
    results = {"a": RESULT}
    scene = Scene(10, MEW)
    await scene.make_room(CALLS[:1], results)
    withhold_results(CALLS[:1], results, scene.state)
    assert results == {"a": RESULT}


async def test_results_stay_whole_if_the_policy_makes_room(start_conversation: StartConversation) -> None:
    for policy, whole in ((LMSTUDIO, True), (MEW, False)):
        async with start_conversation(policy=policy, window_tokens=2048, tools=(TOOL,)) as driver:
            reply = await driver.turn('call look_up with {"q": "a"}')
            (call,) = reply.tool_calls
            result = "a long result " * 400
            await driver.conversation.state.close_open_calls("?", {call.id: result})
            kept = driver.conversation.history.items[-1].content
            assert (kept == result) == whole
