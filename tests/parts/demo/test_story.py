"""The plot of the demo, played by real agents on the rehearsal model in a real gateway."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import PurePath
from typing import Any

import anyio
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.agent.agent import Agent
from mew_agent.config.agent_config import AgentConfig
from mew_agent.participant.participant import Participant
from mew_agent.parts.demo.story import DemoFailed, DemoStory, split_text
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal
from tests.support.rehearsal_model import rehearsal_model
from tests.support.waiting import PATIENCE_SECONDS

SPACE = """
space: {id: demo}
participants:
  you: {capabilities: [{kind: "*"}]}
  reader:
    command: mew
    capabilities: &agent [{kind: chat}, {kind: "chat/*"}, {kind: participant/status}, {kind: participant/compact-done}]
  editor: {command: mew, capabilities: *agent}
"""
WINDOW_TOKENS = 1500
TEXT = "\n\n".join(
    f"Section {number}. The gateway keeps the last status of participant {number * 7} and serves it to late joiners,"
    f" because a reader who comes late must not see {number} stale figures."
    for number in range(60)
)


@asynccontextmanager
async def demo_story(options: RehearsalOptions) -> AsyncIterator[tuple[DemoStory, list[dict[str, Any]]]]:
    """Gateway, model and two agents; the story about to be played, and its events."""
    events: list[dict[str, Any]] = []
    async with (
        serve_gateway(parse_space(SPACE)) as gateway,
        serve_rehearsal(options) as server,
        AsyncExitStack() as stack,
    ):
        model = rehearsal_model(server.base_url)
        stack.push_async_callback(model.aclose)
        seat = {"gateway": gateway.ws_url, "space": "demo"}
        agents = [
            Agent(AgentConfig.model_validate({**seat, "id": name, "token": gateway.token_of(name)}), model)
            for name in ("reader", "editor")
        ]
        async with (
            agents[0],
            agents[1],
            anyio.create_task_group() as tasks,
            Participant(gateway.ws_url, space="demo", id="you", token=gateway.token_of("you")) as me,
        ):
            for agent in agents:
                tasks.start_soon(agent.run)
            yield DemoStory(me, by_itself="reader", on_request="editor", show=events.append), events
            tasks.cancel_scope.cancel()


def all_texts() -> dict[str, Any]:
    parts = split_text(PurePath("notes.txt"), TEXT)
    return {name: cycle(parts) for name in ("reader", "editor")}


async def test_one_agent_compacts_on_its_own_the_other_on_request() -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with demo_story(RehearsalOptions(window_tokens=WINDOW_TOKENS)) as (story, events):
            checks = await story.play(all_texts())
    assert {check.participant: check.trigger for check in checks} == {"reader": "threshold", "editor": "requested"}
    for check in checks:
        assert check.freed_tokens > 0
        # The next prompt has a question, which is projected.
        assert abs(check.off_tokens) <= 4, check
    reported = [event["event"] for event in events]
    assert reported.count("check") == 2
    assert reported.count("compact-done") == 1
    for event in events:
        if event["event"] == "status" and event.get("tokens") is None:
            assert event["context"]["basis"] == "unknown"


async def test_demo_fails_without_reported_usage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mew_agent.parts.demo.story.MAX_PARTS", 3)
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(DemoFailed, match=r"did not (compact|fill up)"):
        async with demo_story(RehearsalOptions(window_tokens=WINDOW_TOKENS, usage_on="none")) as (story, _):
            await story.play(all_texts())


async def test_failing_model_ends_the_demo_with_its_error() -> None:
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(DemoFailed, match="My model refused my key"):
        async with demo_story(RehearsalOptions(window_tokens=WINDOW_TOKENS, status=401)) as (story, _):
            await story.play(all_texts())
