"""Agents under the Tachikoma preset: states, events, suggestions, past calls, compression; over real sockets.

Ids name the rows of the test tables this system was specified by.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.conversation.conversation_events import (
    ContextCleared,
    ContextCompacted,
    ContextEvent,
    LevelChanged,
    RedlineApproached,
    RedlineCrossed,
    SavingSuggested,
)
from tests.support.agents import AgentDriver
from tests.support.cli import mew, seat

StartAgent = Callable[..., Any]
"""`start_agent(...)` of the conftest."""

Text = Callable[[int], str]


def tachikoma(limit: int = 200_000, **values: Any) -> dict[str, Any]:
    return {"policy": "tachikoma", "context_token_limit": limit, **values}


def totals(*tokens: int) -> tuple[tuple[int, int, int], ...]:
    """The usage that the server reports for these totals, with ten tokens for each reply."""
    return tuple((total - 10, 10, total) for total in tokens)


def listening(driver: AgentDriver) -> list[ContextEvent]:
    """All later events of the agent's context."""
    received: list[ContextEvent] = []

    async def receive(event: ContextEvent) -> None:
        received.append(event)

    driver.agent.on_context_event(receive)
    return received


async def requested(driver: AgentDriver, times: int) -> None:
    for number in range(times):
        await driver.ask(f"Note {number}.")
        await driver.status()


# -- states ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "level", "until_warning", "until_redline", "room"),
    [
        pytest.param(99_999, "nominal", 50_001, 80_001, 100_001, id="T1 below"),
        pytest.param(100_000, "elevated", 50_000, 80_000, 100_000, id="T1"),
        pytest.param(149_999, "elevated", 1, 30_001, 50_001, id="T2 below"),
        pytest.param(150_000, "warning", 0, 30_000, 50_000, id="T2, T13"),
        pytest.param(180_000, "critical", 0, 0, 20_000, id="T4"),
        pytest.param(199_999, "critical", 0, 0, 1, id="T5 below"),
        pytest.param(200_000, "redlined", 0, 0, 0, id="T5"),
        pytest.param(200_009, "redlined", 0, 0, 0, id="T5 above"),
    ],
)
async def test_states_and_room_follow_the_reported_total(
    start_agent: StartAgent, total: int, level: str, until_warning: int, until_redline: int, room: int
) -> None:
    # More than the window is only plausible after a report that explains it.
    reports = (total,) if total <= 200_000 else (200_000, total)
    async with start_agent(agent=tachikoma(), fixed_usage=totals(*reports)) as s:
        assert s.agent.context_view.occupancy is None or s.agent.context_view.occupancy.level == "nominal"
        await requested(s, len(reports))
        gauge = s.agent.context_view
        assert s.statuses[-1]["context"]["level"] == level
        assert gauge.occupancy.level == level
        assert gauge.occupancy.needs_reset == (level == "redlined")
        assert gauge.tokens_until("warning") == until_warning
        assert gauge.tokens_until_redline() == until_redline
        assert gauge.has_room_for(room)
        assert not gauge.has_room_for(room + 1)


async def test_every_state_change_is_announced_and_emitted(start_agent: StartAgent) -> None:
    async with start_agent(
        agent=tachikoma(), fixed_usage=totals(90_000, 110_000, 160_000, 175_000, 176_000, 210_000)
    ) as s:
        received = listening(s)
        await requested(s, 6)
        words = [w for w in s.recorder.words("coder") if w != "active"]
        assert words == [
            "state_changed:nominal -> elevated",
            "state_changed:elevated -> warning",
            "state_changed:warning -> critical",
            "approaching_redline",
            "state_changed:critical -> redlined",
            "redlined",
        ]
        levels = [(event.before, event.after) for event in received if isinstance(event, LevelChanged)]
        assert levels[-4:] == [
            ("nominal", "elevated"),
            ("elevated", "warning"),
            ("warning", "critical"),
            ("critical", "redlined"),
        ]
        (approached,) = [event for event in received if isinstance(event, RedlineApproached)]
        assert approached == RedlineApproached(175_000, 200_000)
        assert [event for event in received if isinstance(event, RedlineCrossed)] == [RedlineCrossed(210_000, 200_000)]


async def test_messages_change_the_state_before_a_call_reports_them(start_agent: StartAgent, text: Text) -> None:
    """A message counts when it arrives: the state changes before the model call."""
    async with start_agent(agent=tachikoma(1000), window_tokens=8192, fixed_usage=totals(300, 320)) as s:
        await s.ask("Note.")
        await s.ask(text(200))
        words = [w for w in s.recorder.words("coder") if w.startswith("state_changed")]
        assert words[0] == "state_changed:nominal -> elevated"
        changed = next(e for e in s.recorder.sent_by("coder", "participant/status") if e.body["status"] == words[0])
        assert changed.body["tokens"] == 300
        assert changed.body["context"]["stale_messages"] == 1


async def test_every_policy_emits_its_level_changes(start_agent: StartAgent) -> None:
    async with start_agent(fixed_usage=totals(1000, 7400)) as s:
        received = listening(s)
        await requested(s, 2)
        changes = [event for event in received if isinstance(event, LevelChanged)]
        assert [(event.before, event.after) for event in changes][:2] == [
            ("unknown", "healthy"),
            ("healthy", "near_limit"),
        ]
        assert (changes[1].severity, changes[1].tokens, changes[1].max_tokens) == (2, 7400, 8192)


# -- suggestions, past calls, compression ------------------------------------------------------------------


async def test_t10_more_than_ten_user_messages_cause_a_suggestion(start_agent: StartAgent) -> None:
    async with start_agent(agent=tachikoma(10_000), reply_tokens=10) as s:
        received = listening(s)
        await requested(s, 10)
        assert s.agent.context_view.suggestions == ()
        await requested(s, 1)
        (suggestion,) = s.agent.context_view.suggestions
        assert suggestion.text == "remove the 6 oldest user messages"
        assert suggestion.impact == "low"
        prices = s.agent.conversation.tracker.ledger.item_prices()
        users = [item for item in s.agent.conversation.history.items if item.role == "user"]
        assert abs(suggestion.tokens_saved - sum(prices[item.seq] for item in users[:6])) <= 6 * 8
        (shown,) = s.statuses[-1]["context"]["suggestions"]
        assert (shown["tokens_saved"], shown["impact"]) == (suggestion.tokens_saved, "low")
        assert [event.suggestion for event in received if isinstance(event, SavingSuggested)] == [suggestion]


async def test_long_answers_cause_a_suggestion(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=tachikoma(1500), script=[{"text": text(300)}] * 2) as s:
        await requested(s, 2)
        (suggestion,) = s.agent.context_view.suggestions
        assert (suggestion.text, suggestion.impact) == ("summarise the assistant messages", "medium")


async def test_t14_past_calls_survive_a_clear_and_a_restart(start_agent: StartAgent, tmp_path: Path) -> None:
    path = tmp_path / "session.db"
    async with start_agent(agent=tachikoma(), store=SqliteStore(path), fixed_usage=totals(90_000, 120_000)) as s:
        received = listening(s)
        await requested(s, 2)
        await s.control("clear")
        await s.recorder.first("coder", "participant/status", status="cleared")
        assert [event for event in received if isinstance(event, ContextCleared)] == [ContextCleared(120_000, None)]
        assert len(await s.agent.context_view.past()) == 2
    async with start_agent(agent=tachikoma(), store=SqliteStore(path), fixed_usage=totals(130_000)) as s:
        await requested(s, 1)
        past = await s.agent.context_view.past()
        assert [(point.tokens, point.level, point.max_tokens) for point in past] == [
            (90_000, "nominal", 200_000),
            (120_000, "elevated", 200_000),
            (130_000, "elevated", 200_000),
        ]
        assert len(await s.agent.context_view.past(newest=1)) == 1


async def test_compressing_drops_the_oldest_and_reports_a_missed_target(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=tachikoma(4000), reply_tokens=40) as s:
        for _ in range(4):
            await s.ask(text(300))
        received = listening(s)
        reached = await s.agent.context_view.compress_to(30)
        assert reached.removed_messages in (2, 4)
        assert reached.missed_by_tokens == 0
        assert reached.tokens_after <= reached.target_tokens == 1200 < reached.tokens_before
        missed = await s.agent.context_view.compress_to(2)
        assert missed.missed_by_tokens == missed.tokens_after - 80 > 0
        assert len(s.agent.conversation.history.items) == 2
        again = await s.agent.context_view.compress_to(2)
        assert (again.removed_messages, again.tokens_before) == (0, again.tokens_after)
        await s.recorder.until(lambda: s.recorder.words("coder").count("compacted") == 2)
        assert len([event for event in received if isinstance(event, ContextCompacted)]) == 2
        with pytest.raises(ValueError, match="not a percentage"):
            await s.agent.context_view.compress_to(0)


async def test_t9_the_only_turn_is_never_dropped(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=tachikoma(1000), reply_tokens=20) as s:
        await s.ask(text(600))
        left = await s.agent.context_view.compress_to(50)
        assert left.removed_messages == 0
        assert left.missed_by_tokens > 0


@pytest.mark.parametrize("by", ["message", "command"])
async def test_t7_a_request_for_a_percentage_drops_the_oldest_turns(
    start_agent: StartAgent, text: Text, by: str
) -> None:
    """The newest turn stays, and no model is asked for a summary."""
    async with start_agent(agent=tachikoma(4000), reply_tokens=40) as s:
        for _ in range(4):
            await s.ask(text(300))
        newest = s.agent.conversation.history.items[-1].content
        if by == "message":
            done = await s.ada.compact("coder", target_percent=30)
            freed = done.freed_tokens
        else:
            shown = await mew("compact", "coder", "--target-percent", "30", "--json", *seat(s.gateway, "bob"))
            assert shown.code == 0, shown.err
            freed = json.loads(shown.out)["freed_tokens"]
        after = s.agent.conversation.tracker.ledger.next_prompt_tokens
        assert freed > 0
        assert after <= 1200
        assert s.agent.conversation.history.items[-1].content == newest
        assert not s.summary_requests


async def test_t8_a_percentage_below_the_newest_turn_keeps_that_turn(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=tachikoma(4000), reply_tokens=20) as s:
        await s.ask(text(200))
        await s.ask(text(900))
        done = await s.ada.compact("coder", target_percent=10)
        assert not done.skipped
        assert done.tokens_after is not None
        assert done.tokens_after > 400
        assert [item.role for item in s.agent.conversation.history.items] == ["user", "assistant"]
        again = await s.ada.compact("coder", target_percent=10)
        assert (again.skipped, again.reason) == (True, "no_history")
