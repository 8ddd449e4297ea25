"""A fallback model brings its own window, and the first one comes back with the first model."""

from collections.abc import Callable
from typing import Any

from mew_agent.context.history import History
from mew_agent.context.policy import MEW
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.served import ServedWindows
from mew_agent.model.interface import Window

Staged = Callable[..., Any]
"""`stage(...)` of the conftest."""


def test_only_models_that_are_known_by_name_bring_a_window() -> None:
    own = Window(128_000, "loaded", "/v1/models")
    tracker = Tracker(History(), MEW, own, "big")
    served = ServedWindows(tracker, {"small": 8000, "tiny": 2000, "big": 999})
    windows = []
    for name in ("big", "big-2026-01-01", "small", "small", "tiny", "big-2026-01-01", "small", "big"):
        served.answered_by(name)
        windows.append(tracker.window)
    small, tiny = Window(8000, "configured", "models.small"), Window(2000, "configured", "models.tiny")
    assert windows == [own, own, small, small, tiny, own, small, own]


async def test_the_limit_of_the_report_changes_with_the_model_that_answered(stage: Staged) -> None:
    agent = {"models": {"small": {"context_length": 4000}}}
    async with stage(agent=agent, fixed_usage=((3590, 10, 3600),) * 3) as s:
        for name, limit, level in ((None, 8192, "healthy"), ("small", 4000, "near_limit"), (None, 8192, "healthy")):
            s.server.change(served_model=name)
            await s.ask("Go on.")
            status = s.reported[-1]
            assert (status["tokens"], status["max_tokens"]) == (3600, limit)
            assert status["context"]["level"] == level
