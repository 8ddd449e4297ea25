"""The tools over an agent's own context: what they keep, how it is marked, and when a mind is not cleared."""

import json
from typing import Any

import pytest

from mew_agent.context.history import History
from mew_agent.context.policy import DOMINDS_V3
from mew_agent.context.store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.context_tools import ContextTools
from mew_agent.conversation.events import Events
from mew_agent.conversation.policy_executor import Remedies
from mew_agent.conversation.transcript import Transcript
from mew_agent.model.interface import ToolCall
from mew_agent.model.usage import Usage
from mew_agent.tools.results import ToolResult
from mew_agent.tools.sources import CallContext


class Desk:
    """An agent's tools over a context of so many reported tokens of 200,000."""

    def __init__(self) -> None:
        self.tracker = Tracker(History(), DOMINDS_V3, resolve_window(200_000), "model")
        self.transcript = Transcript(self.tracker, MemoryStore())
        self.remedies = Remedies(self.transcript, Events())
        self.tools = ContextTools(self.remedies)
        self._calls = 0

    def full(self, prompt_tokens: int | None) -> None:
        """The model reported so much, or nothing."""
        usage = None if prompt_tokens is None else Usage(prompt_tokens, 10, prompt_tokens + 10)
        self.tracker.call_kept(usage, call_id="c", at="t", last_seq=-1, revision=0, served_model="m", fingerprint="f")

    async def use(self, name: str, **arguments: Any) -> str:
        return (await self.tools.run(self.call(name, **arguments), CallContext("chat"))).prompt_text

    def call(self, name: str, **arguments: Any) -> ToolCall:
        self._calls += 1
        return ToolCall(f"call-{self._calls}", name, json.dumps(arguments))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_four_tools_are_described(desk: Desk) -> None:
    specs = desk.tools.specs()
    assert [spec.name for spec in specs] == ["add_reminder", "update_reminder", "delete_reminder", "clear_mind"]
    assert all(spec.description.endswith(".") for spec in specs)
    assert desk.tools.has("clear_mind")
    assert not desk.tools.has("look_up")


@pytest.mark.parametrize(
    ("prompt_tokens", "level"), [(50_000, None), (None, None), (100_001, "caution"), (180_001, "critical")]
)
async def test_a_reminder_written_at_a_concerning_level_is_a_continuation_package(
    desk: Desk, prompt_tokens: int | None, level: str | None
) -> None:
    desk.full(prompt_tokens)
    assert await desk.use("add_reminder", content="The pier.") == "Kept as r1."
    (one,) = desk.transcript.standing.reminders
    assert (one.package and one.package.level) == level
    assert level is None or (one.package and one.package.created_by) == "context_health"


async def test_the_mark_follows_the_level_of_the_last_change_and_goes_when_all_is_well(desk: Desk) -> None:
    desk.full(100_001)
    await desk.use("add_reminder", content="one")
    desk.full(190_000)
    await desk.use("update_reminder", reminder_id="r1", content="two")
    (one,) = desk.remedies.reminders.all
    assert one.package is not None
    assert one.package.level == "critical"
    desk.full(5_000)
    await desk.use("update_reminder", reminder_id="r1", content="three")
    assert desk.remedies.reminders.all[0].package is None
    await desk.use("delete_reminder", reminder_id="r1")
    assert desk.transcript.standing.reminders == ()


async def test_mistakes_are_text_the_model_can_act_on(desk: Desk) -> None:
    assert await desk.use("update_reminder", reminder_id="r7", content="x") == "Error: no reminder 'r7' (known: none)"
    assert (await desk.use("add_reminder", content=" ")).startswith("Error: a reminder needs a text")
    assert (await desk.use("add_reminder")).startswith("Error: bad arguments for 'add_reminder'")


@pytest.mark.parametrize("clear_first", [True, False])
async def test_a_failed_sibling_keeps_the_mind_as_it_is(desk: Desk, clear_first: bool) -> None:
    clearing = desk.call("clear_mind", reminder_content="lost?")
    other, fine = desk.call("explode"), desk.call("look_up")
    found = ToolResult("found")
    results = {other.id: ToolResult("bang", is_error=True), fine.id: found, clearing.id: await desk.tools.run(clearing)}
    calls = (clearing, other, fine) if clear_first else (other, fine, clearing)
    assert not desk.tools.verdict(calls, results)
    assert results[clearing.id].prompt_text.startswith("Error: nothing was cleared, because explode failed beside it")
    assert desk.remedies.reminders.all == ()
    assert not desk.tools.verdict((fine,), {fine.id: found})


async def test_a_result_that_is_missing_counts_as_failed(desk: Desk) -> None:
    clearing, other = desk.call("clear_mind"), desk.call("explode")
    assert not desk.tools.verdict((clearing, other), {clearing.id: await desk.tools.run(clearing)})


@pytest.mark.parametrize(("note", "kept"), [("Error: start here", ["Error: start here"]), ("  ", []), ("", [])])
async def test_a_cleared_mind_leaves_its_note_as_a_reminder(desk: Desk, note: str, kept: list[str]) -> None:
    desk.full(190_000)
    clearing = desk.call("clear_mind", reminder_content=note)
    assert desk.tools.verdict((clearing,), {clearing.id: await desk.tools.run(clearing)})
    assert [one.text for one in desk.remedies.reminders.all] == kept
    assert all(one.package and one.package.created_by == "clear_mind" for one in desk.remedies.reminders.all)
