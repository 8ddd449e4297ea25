"""Results before they enter: replaced, made room for, or refused; each looked at after those before it."""

import pytest

from mew_agent.context.history import History
from mew_agent.context.policy import LMSTUDIO, MEW, CompactAction
from mew_agent.context.store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.events import Events
from mew_agent.conversation.policy_executor import Remedies
from mew_agent.conversation.tool_results import ToolResults, halved
from mew_agent.conversation.transcript import Transcript
from mew_agent.errors import PolicyStopped
from mew_agent.model.interface import ToolCall
from mew_agent.tokens.projection import features
from mew_agent.tools.results import ToolResult

CALLS = (ToolCall("a", "fetch", "{}"), ToolCall("b", "fetch", "{}"))


class Desk:
    """Results of an agent with an empty history and a window of so many tokens, whose compactions change nothing."""

    def __init__(self, window: int, policy: object = LMSTUDIO) -> None:
        self.tracker = Tracker(History(), policy, resolve_window(window), "model")  # type: ignore[arg-type]
        self.compacted: list[CompactAction] = []
        transcript = Transcript(self.tracker, MemoryStore())
        self.results = ToolResults(transcript, Remedies(transcript, Events()), self._compact)

    async def _compact(self, action: CompactAction) -> bool:
        self.compacted.append(action)
        return False

    def tokens(self, text: str) -> int:
        return self.tracker.ledger.calibration.project(features(text))


TEXT = "water " * 300
RESULT = ToolResult(TEXT)


async def test_results_that_fit_together_are_left_alone() -> None:
    desk = Desk(4096)
    results = {"a": RESULT, "b": RESULT}
    await desk.results.fit(CALLS, results)
    assert (results, desk.compacted) == ({"a": RESULT, "b": RESULT}, [])


async def test_a_second_result_is_looked_at_behind_the_first() -> None:
    """Each fits alone, both do not; a compaction that changes nothing is tried three times, and then it is an error."""
    desk = Desk(Desk(1).tokens(TEXT) + 10)
    with pytest.raises(PolicyStopped, match="still over the limit after 3 restarts"):
        await desk.results.fit(CALLS, results := {"a": RESULT, "b": RESULT})
    assert len(desk.compacted) == 3
    assert results["a"] == RESULT
    assert results["b"].is_error
    assert results["b"].text.startswith("a result of about")


async def test_a_result_larger_than_the_window_is_refused_without_a_compaction() -> None:
    desk = Desk(Desk(1).tokens(TEXT) - 1)
    with pytest.raises(PolicyStopped, match="the tool result alone exceeds the context window"):
        await desk.results.fit(CALLS[:1], {"a": RESULT})
    assert desk.compacted == []
    exact = Desk(Desk(1).tokens(TEXT))
    await exact.results.fit(CALLS[:1], {"a": RESULT})


async def test_policies_that_do_not_look_at_results_leave_them_alone() -> None:
    results = {"a": RESULT}
    await Desk(10, MEW).results.fit(CALLS[:1], results)
    Desk(10, MEW).results.withhold(CALLS[:1], results)
    assert results == {"a": RESULT}


@pytest.mark.parametrize(("target", "prompt", "expected"), [(900, 1000, 500), (300, 1000, 300), (900, 1, 0)])
def test_at_most_half_of_a_prompt_that_left_no_room_stays(target: int, prompt: int, expected: int) -> None:
    assert halved(CompactAction("stream", target), prompt).target_tokens == expected
