"""The tools over an agent's own context: what they store, how it is marked, and when a clear is refused."""

import json
from typing import Any

import pytest

from mew_agent.context.history import History
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.context_tools import ContextTools
from mew_agent.conversation.conversation_events import ConversationEvents
from mew_agent.conversation.texts import CANCELLED_RESULT, CLEARED_RESULT
from mew_agent.model.interface import ToolCall
from mew_agent.model.usage import Usage
from mew_agent.parts.policies.presets import DOMINDS_V3
from mew_agent.tools.results import ToolResult
from mew_agent.tools.sources import CallContext
from tests.support.trackers import keep_call


class Scene:
    """The tools of an agent over an empty context of 200,000 tokens."""

    def __init__(self) -> None:
        self.tracker = Tracker(History(), DOMINDS_V3, resolve_window(200_000), "model")
        self.state = ContextState(self.tracker, MemoryStore(), ConversationEvents())
        self.tools = ContextTools(self.state)
        self._calls = 0

    def report(self, prompt_tokens: int | None) -> None:
        """Report a prompt of this size, or no usage."""
        usage = None if prompt_tokens is None else Usage(prompt_tokens, 10, prompt_tokens + 10)
        keep_call(self.tracker, usage)

    async def use(self, name: str, **arguments: Any) -> str:
        return (await self.tools.run(self.call(name, **arguments), CallContext("chat"))).prompt_text

    def call(self, name: str, **arguments: Any) -> ToolCall:
        self._calls += 1
        return ToolCall(f"call-{self._calls}", name, json.dumps(arguments))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_four_tools_are_described(scene: Scene) -> None:
    specs = scene.tools.specs()
    assert [spec.name for spec in specs] == ["add_reminder", "update_reminder", "delete_reminder", "clear_mind"]
    assert all(spec.description.endswith(".") for spec in specs)
    assert scene.tools.has("clear_mind")
    assert not scene.tools.has("look_up")


@pytest.mark.parametrize(
    ("prompt_tokens", "level"), [(50_000, None), (None, None), (100_001, "caution"), (180_001, "critical")]
)
async def test_a_reminder_above_the_healthy_level_is_a_continuation_package(
    scene: Scene, prompt_tokens: int | None, level: str | None
) -> None:
    scene.report(prompt_tokens)
    assert await scene.use("add_reminder", content="The pier.") == "Kept as r1."
    (one,) = scene.state.persisted.reminders
    assert (one.package and one.package.level) == level
    assert level is None or (one.package and one.package.created_by) == "context_health"


async def test_the_mark_follows_the_level_and_disappears_when_healthy(scene: Scene) -> None:
    scene.report(100_001)
    await scene.use("add_reminder", content="one")
    scene.report(190_000)
    await scene.use("update_reminder", reminder_id="r1", content="two")
    (one,) = scene.state.reminders.all
    assert one.package is not None
    assert one.package.level == "critical"
    scene.report(5_000)
    await scene.use("update_reminder", reminder_id="r1", content="three")
    assert scene.state.reminders.all[0].package is None
    await scene.use("delete_reminder", reminder_id="r1")
    assert scene.state.persisted.reminders == ()


async def test_mistakes_return_text_the_model_can_act_on(scene: Scene) -> None:
    assert await scene.use("update_reminder", reminder_id="r7", content="x") == "Error: no reminder 'r7' (known: none)"
    assert (await scene.use("add_reminder", content=" ")).startswith("Error: a reminder needs a text")
    assert (await scene.use("add_reminder")).startswith("Error: bad arguments for 'add_reminder'")


@pytest.mark.parametrize("clear_first", [True, False])
async def test_another_failed_call_refuses_the_clear(scene: Scene, clear_first: bool) -> None:
    clearing = scene.call("clear_mind", reminder_content="lost?")
    other, fine = scene.call("explode"), scene.call("look_up")
    found = ToolResult("found")
    results = {
        other.id: ToolResult("bang", is_error=True),
        fine.id: found,
        clearing.id: await scene.tools.run(clearing),
    }
    calls = (clearing, other, fine) if clear_first else (other, fine, clearing)
    assert not scene.tools.confirm_clear(calls, results)
    assert results[clearing.id].prompt_text.startswith(
        "Error: nothing was cleared, because explode failed in the same reply"
    )
    assert scene.state.reminders.all == ()
    assert not scene.tools.confirm_clear((fine,), {fine.id: found})


async def test_a_missing_result_counts_as_failed(scene: Scene) -> None:
    clearing, other = scene.call("clear_mind"), scene.call("explode")
    assert not scene.tools.confirm_clear((clearing, other), {clearing.id: await scene.tools.run(clearing)})


@pytest.mark.parametrize(("note", "kept"), [("Error: start here", ["Error: start here"]), ("  ", []), ("", [])])
async def test_the_note_of_a_clear_becomes_a_reminder(scene: Scene, note: str, kept: list[str]) -> None:
    scene.report(190_000)
    clearing = scene.call("clear_mind", reminder_content=note)
    assert scene.tools.confirm_clear((clearing,), {clearing.id: await scene.tools.run(clearing)})
    assert [one.text for one in scene.state.reminders.all] == kept
    assert all(one.package and one.package.created_by == "clear_mind" for one in scene.state.reminders.all)


async def test_a_clear_of_a_cancelled_reply_clears_nothing_later(scene: Scene) -> None:
    result = await scene.tools.run(scene.call("clear_mind", reminder_content="go on"))
    assert result.text == CANCELLED_RESULT, "a cancelled turn adds the results as they are"
    later = scene.call("look_up")
    assert not scene.tools.confirm_clear((later,), {later.id: ToolResult("found")})
    assert scene.state.reminders.all == ()


async def test_a_confirmed_clear_says_so(scene: Scene) -> None:
    clearing = scene.call("clear_mind")
    results = {clearing.id: await scene.tools.run(clearing)}
    assert scene.tools.confirm_clear((clearing,), results)
    assert results[clearing.id].text == CLEARED_RESULT
