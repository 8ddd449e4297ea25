"""Policies of agents: the marks of `mew-reference`, and every preset in a small window."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from mew_agent.config.policy_choice import presets
from mew_agent.context.history import History
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.conversation_events import ConversationEvent, StatusChanged
from mew_agent.conversation.model_calls import ConversationOptions
from mew_agent.model.interface import ModelEvent
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal
from tests.support.rehearsal_model import rehearsal_model
from tests.support.waiting import PATIENCE_SECONDS

StartAgent = Callable[..., Any]
"""`start_agent(...)` of the conftest."""


async def ignore(_event: ModelEvent) -> None:
    """Ignore every event."""


@pytest.mark.parametrize(
    ("total", "words"),
    [
        pytest.param(7372, [], id="below 9/10"),
        pytest.param(7373, ["near_limit"], id="at 9/10"),
        pytest.param(7782, ["near_limit"], id="at 19/20"),
        pytest.param(7783, ["near_limit", "compacting", "compacted"], id="above 19/20"),
    ],
)
async def test_mew_reference_warns_and_compacts_at_its_own_marks(
    text: Callable[[int], str], total: int, words: list[str]
) -> None:
    """8192 * 9 / 10 is 7372.8, and 8192 * 19 / 20 is 7782.4."""
    usage = (
        (1000, 100, 1100),
        (2500, 100, 2600),
        (4500, 100, 4600),
        (5300, 100, 5400),
        (6100, 100, 6200),
        (total - 60, 60, total),
    )
    announced: list[str] = []
    async with serve_rehearsal(RehearsalOptions(fixed_usage=usage)) as server:
        model = rehearsal_model(server.base_url)
        tracker = Tracker(History(), presets()["mew-reference"], resolve_window(8192), "rehearsal")

        async def record(event: ConversationEvent) -> None:
            if isinstance(event, StatusChanged) and event.word:
                announced.append(str(event.word))

        options = ConversationOptions(system_prompt="You keep records.")
        conversation = Conversation(model, tracker, MemoryStore(), options)
        conversation.events.subscribe(record)
        with anyio.fail_after(PATIENCE_SECONDS):
            for number in range(len(usage)):
                await conversation.begin_turn()

                async def prepare(requested: str = text(300), envelope: str = f"q{number}") -> None:
                    if not any(item.envelope_id == envelope for item in conversation.history.items):
                        await conversation.state.add_user_message(requested, sender="ada", envelope_id=envelope)

                await conversation.call(ignore, prepare)
                conversation.end_turn()
                await conversation.apply_pending()
        await model.aclose()
    assert announced == words
    if "compacted" in words:
        assert tracker.last_compaction is not None
        assert tracker.last_compaction.trigger == "threshold"
        assert tracker.measurement.tokens is not None
        assert tracker.measurement.tokens * 10 <= 8192 * 7


def weigh(thing: str) -> str:
    """Weigh something."""
    return f"{thing} weighs {len(thing)}, " * 12


SMALL = {
    "dominds-v1": {"optimal_max_tokens": 1200},
    "dominds-v3": {"optimal_max_tokens": 1200, "critical_max_tokens": 1900},
}


@pytest.mark.parametrize("preset", presets())
async def test_every_preset_answers_a_long_conversation_with_tools(
    start_agent: StartAgent, text: Callable[[int], str], preset: str
) -> None:
    """With true usage in a small window, every question gets one answer, whatever is removed for it."""
    agent = {"policy": preset, "policy_scope": "any", "policy_settings": SMALL.get(preset, {})}
    async with start_agent(agent=agent, tools=[weigh], window_tokens=3200, reply_tokens=60) as s:
        for number in range(14):
            requested = f'call weigh with {{"thing": "stone {number}"}}' if number % 3 == 1 else text(150)
            question = await s.send_chat(requested)
            answer = await s.recorder.first("coder", "chat", about=question)
            assert not answer.body["text"].startswith(
                ("I had to stop", "My model call failed", "My request does not fit")
            )
        await s.status()
        assert len(s.recorder.sent_by("coder", "chat")) == 14
        assert s.agent.conversation.history.open_calls() == frozenset()
        refused = [request for request in s.server.requests if request.status != 200]
        assert not refused or preset not in ("mew", "lmstudio"), "these look before they send"
        assert {status["context"]["policy"] for status in s.statuses} == {preset}
        emptied = [w for w in s.recorder.words("coder") if w.startswith("cleared") or w == "compacted"]
        assert emptied or preset == "dominds-v1"


RULE = "Never push to main."


@pytest.mark.parametrize("policy", ["mew-reference", "dominds-v1", "dominds-v3", "lmstudio", "tachikoma"])
async def test_every_policy_keeps_pins(start_agent: StartAgent, text: Callable[[int], str], policy: str) -> None:
    async with start_agent(agent={"policy": policy, "policy_scope": "any", "pins": [RULE]}) as s:
        for _ in range(6):
            await s.ask(text(100))
        await s.ada.compact("coder")
        await s.control("clear")
        await s.ask("Still there?")
        assert all(RULE in str(request.body["messages"][0]) for request in s.main_requests)
