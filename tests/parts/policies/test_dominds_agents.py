"""Agents under the Dominds presets: reminders, prompts at a cadence, countdowns and clears, over real sockets.

Ids name the rows of the test tables these systems were specified by. Usage is made up by the model's server, one entry
a generation; all else is real.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mew_agent.context.history import Item
from mew_agent.context.reminders import HEADING
from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.conversation.texts import NOTICE

StartAgent = Callable[..., Any]
"""`start_agent(...)` of the conftest."""

K = 1000
CRITICAL = (190_000, 10, 190_010)
NOTED = {"text": "Noted."}


def prompts(*tokens: int | None) -> tuple[tuple[int, int, int] | None, ...]:
    """The usage that the server reports for these prompt sizes; None reports none."""
    return tuple(None if p is None else (p, 10, p + 10) for p in tokens)


def dominds(version: str, limit: int | None = 200 * K, **settings: Any) -> dict[str, Any]:
    """An agent's configuration."""
    return {"policy": f"dominds-{version}", "context_token_limit": limit, "policy_settings": settings}


def notices(driver: Any) -> list[Item]:
    """Prompts of the policy in the history."""
    return [item for item in driver.agent.conversation.history.items if item.notice]


def left(driver: Any) -> list[int]:
    """How many prompts follow, from each countdown prompt sent, in the order of the requests."""
    found: dict[str, int] = {}
    for request in driver.main_requests:
        for place, message in enumerate(request.body["messages"]):
            text = str(message["content"])
            if text.startswith(NOTICE) and (number := re.search(r"(\d+) more notices? follow|last notice", text)):
                found.setdefault(f"{place} {text}", int(number[1] or 0))
    return list(found.values())


def reminded(request: Any) -> str:
    """The reminders in a request."""
    texts = [str(m["content"]) for m in request.body["messages"]]
    return next((text for text in texts if text.startswith(HEADING)), "")


async def requested(driver: Any, times: int) -> None:
    for number in range(times):
        await driver.ask(f"Note number {number}.")
        await driver.status()


# -- one owned reminder ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "settings", "sequence", "expected"),
    [
        pytest.param(200 * K, {}, [100_000, 100_001, 150_000, 100_000, 99_999, 100_001], "-RRR-R", id="D1"),
        pytest.param(200 * K, {"optimal_max_tokens": 60_000}, [60_000, 60_001, 60_000, 59_999], "-RR-", id="D2"),
        pytest.param(200 * K, {}, [120_000, None, 120_000, 99_999], "RRR-", id="D3"),
        pytest.param(200 * K, {"optimal_max_tokens": 150_000}, [120_000, 150_001, 150_000, 149_999], "-RR-", id="D4"),
        pytest.param(65_537, {}, [32_768, 32_769], "-R", id="D5"),
        pytest.param(200 * K, {}, [None, None], "--", id="D6"),
        pytest.param(None, {}, [190_000], "-", id="D8"),
    ],
)
async def test_the_reminder_is_in_every_request_while_the_prompt_is_large(
    start_agent: StartAgent, limit: int | None, settings: dict[str, int], sequence: Sequence[int | None], expected: str
) -> None:
    """One more request shows what follows the last usage."""
    agent = dominds("v1", limit, **settings)
    async with start_agent(agent=agent, fixed_usage=prompts(*sequence), report_window=False) as s:
        await requested(s, len(sequence) + 1)
        shown = ["R" if "Context health" in reminded(request) else "-" for request in s.main_requests[1:]]
        assert "".join(shown) == expected


async def test_d7_the_models_input_length_is_the_default_window(start_agent: StartAgent) -> None:
    agent = {**dominds("v1", None), "models": {"rehearsal": {"input_length": 128_000}}}
    async with start_agent(agent=agent, fixed_usage=prompts(64_000, 64_001), report_window=False) as s:
        await requested(s, 3)
        assert [bool(reminded(r)) for r in s.main_requests] == [False, False, True]
        assert s.statuses[-1]["max_tokens"] == 128_000


async def test_the_reminder_shows_the_newest_figures_or_calls_them_unknown(start_agent: StartAgent) -> None:
    async with start_agent(agent=dominds("v1"), fixed_usage=prompts(120_000, 130_000, None)) as s:
        await requested(s, 2)
        assert "120,000 of 200,000 tokens (60 %)" in reminded(s.main_requests[1])
        assert (await s.status())["context"]["injection"]["kind"] == "reminder"
        await requested(s, 2)
        assert "130,000 of 200,000" in reminded(s.main_requests[2])
        assert "unknown" in reminded(s.main_requests[3])
        assert "120,000" not in reminded(s.main_requests[3])
        assert all("120,000" not in item.content for item in s.agent.conversation.history.items)


async def test_d6_and_d8_without_usage_or_window_no_figure_is_reported(start_agent: StartAgent) -> None:
    async with start_agent(agent=dominds("v1", None), fixed_usage=prompts(190_000, None), report_window=False) as s:
        await requested(s, 1)
        status = s.statuses[-1]
        assert "tokens" not in status
        assert "max_tokens" not in status
        assert (status["context"]["reason"], status["context"]["level"]) == ("limit_unavailable", "unknown")
        assert status["context"]["last_reported"]["tokens"] == 190_010
        await requested(s, 1)
        assert s.statuses[-1]["context"]["reason"] == "usage_unavailable"


# -- prompts at a cadence, and countdowns ------------------------------------------------------------------


async def test_d9_caution_prompts_alone_and_critical_with_the_next_message(
    start_agent: StartAgent,
) -> None:
    usage = prompts(100_000, 100_001, 180_000, 180_001)
    async with start_agent(agent=dominds("v3"), script=[NOTED] * 9, fixed_usage=usage) as s:
        await requested(s, 1)
        assert not notices(s)
        await s.ask("Second.")
        await s.recorder.until(lambda: len(s.reported) == 3 and len(s.recorder.sent_by("coder", "chat")) == 2)
        (prompt,) = notices(s)
        assert (prompt.role, prompt.envelope_id) == ("user", None)
        assert "100,001 of 200,000" in prompt.content
        assert s.main_requests[2].body["messages"][-1]["content"] == prompt.content
        await s.ask("Third.")
        injection = (await s.status())["context"]["injection"]
        assert (injection["kind"], injection["remaining"]) == ("countdown", 4)
        await s.ask("Fourth.")
        sent = [str(m["content"]) for m in s.main_requests[-1].body["messages"]]
        assert sent[-1] == "Fourth."
        assert "4 more notices follow" in sent[-2]


async def test_d10_a_caution_prompt_comes_on_entry_and_each_tenth_generation(start_agent: StartAgent) -> None:
    usage = prompts(*range(150_000, 151_200, 100))
    async with start_agent(agent=dominds("v3"), script=[NOTED] * 12, fixed_usage=usage) as s:
        await requested(s, 10)
        await s.recorder.until(lambda: len(s.reported) == 12)
        assert len(s.main_requests) == 12
        sent = [str(r.body["messages"][-1]["content"]).startswith(NOTICE) for r in s.main_requests]
        assert [number for number, own in enumerate(sent, 1) if own] == [2, 12]


async def test_d12_after_five_prompts_the_context_is_cleared(start_agent: StartAgent) -> None:
    growing = prompts(*range(190_000, 198_000, 1_000))  # one that stalls would be taken for the window
    async with start_agent(agent=dominds("v3"), fixed_usage=growing) as s:
        await requested(s, 5)
        assert left(s) == [4, 3, 2, 1]
        question = await s.send_chat("The sixth.")
        cleared = await s.recorder.first("coder", "participant/status", status="cleared:countdown at critical ended")
        answer = await s.recorder.first("coder", "chat", about=question)
        assert s.recorder.received.index(answer) < s.recorder.received.index(cleared)
        assert left(s) == [4, 3, 2, 1, 0]
        assert cleared.body["messages_in_context"] == 0
        assert (cleared.body["context"]["basis"], cleared.body["context"]["reason"]) == ("unknown", "cleared")
        await requested(s, 2)
        fresh = [str(m["content"]) for m in s.main_requests[6].body["messages"]]
        assert fresh[-1] == "Note number 0."
        assert "A new course begins" in fresh[-2]
        assert len(fresh) == 3
        assert left(s) == [4, 3, 2, 1, 0, 4]


async def test_d14_missing_usage_ends_the_countdown(start_agent: StartAgent) -> None:
    async with start_agent(agent=dominds("v3"), fixed_usage=prompts(190_000, 190_000, None, 190_000)) as s:
        await requested(s, 3)
        status = s.statuses[-1]
        assert (status["context"]["level"], status["context"]["severity"]) == ("unknown", "unknown")
        assert "injection" not in status["context"]
        await requested(s, 2)
        assert left(s) == [4, 3, 4]


def note(word: str) -> str:
    """Note a word."""
    return f"noted {word}"


async def test_d15_a_due_prompt_waits_for_a_free_generation(start_agent: StartAgent) -> None:
    agent = {**dominds("v3", caution_cadence_generations=4), "upkeep": False}
    async with start_agent(agent=agent, tools=[note], fixed_usage=prompts(150_000, 150_000, 150_000)) as s:
        await s.ask("First.")
        assert not notices(s)
        await s.ask('call note with {"word": "water"}')
        (prompt,) = notices(s)
        roles = [m["role"] for m in s.main_requests[2].body["messages"]]
        assert roles[-3:] == ["assistant", "tool", "user"]
        assert s.main_requests[2].body["messages"][-1]["content"] == prompt.content


@pytest.mark.parametrize(
    ("limit", "sequence", "expected"),
    [
        pytest.param(64 * K, [57_600, 57_601], ["healthy", "critical"], id="D18"),
        pytest.param(128 * K, [100_000, 115_201], ["healthy", "critical"], id="D19"),
        pytest.param(128 * K, [100_001, 115_200], ["caution", "caution"], id="D19 caution"),
    ],
)
async def test_levels_begin_strictly_above_their_marks(
    start_agent: StartAgent, limit: int, sequence: list[int], expected: list[str]
) -> None:
    async with start_agent(agent={**dominds("v3", limit), "upkeep": False}, fixed_usage=prompts(*sequence)) as s:
        await requested(s, 2)
        assert [status["context"]["level"] for status in s.reported] == expected


async def test_d21_at_critical_a_message_carries_the_prompt_once(start_agent: StartAgent) -> None:
    async with start_agent(agent=dominds("v3"), tools=[note], fixed_usage=(CRITICAL,) * 5) as s:
        await s.ask("First.")
        await s.ask('call note with {"word": "water"}')
        assert left(s) == [4]
        assert len(s.main_requests) == 3
        await s.ask("Third.")
        assert left(s) == [4, 3]


async def test_a_countdown_continues_after_a_restart(start_agent: StartAgent, tmp_path: Path) -> None:
    for first, expected in ((3, [4, 3]), (4, [2, 1, 0])):
        store = SqliteStore(tmp_path / "session.db")
        async with start_agent(agent=dominds("v3"), store=store, fixed_usage=(CRITICAL,) * 6) as s:
            if first == 4:
                status = await s.status()
                assert status["context"]["injection"]["remaining"] == 2
                assert status["context"]["reason"] == "restarted"
            await requested(s, first)
            assert [number for number in left(s) if number in expected] == expected
            if first == 4:
                await s.recorder.first("coder", "participant/status", status="cleared:countdown at critical ended")


async def test_a_chat_pending_during_a_clear_is_answered_after_it(start_agent: StartAgent) -> None:
    async with start_agent(agent=dominds("v3"), fixed_usage=(CRITICAL,) * 7) as s:
        await requested(s, 5)
        await s.send_chat("The sixth.")
        last = await s.send_chat("And the seventh, which waits?")
        await s.recorder.first("coder", "chat", about=last)
        assert "cleared:countdown at critical ended" in s.recorder.words("coder")
        sent = [str(m["content"]) for m in s.main_requests[-1].body["messages"]]
        assert sent[-1] == "And the seventh, which waits?"
        assert not any("The sixth." in text for text in sent)


# -- the tools of the model --------------------------------------------------------------------------------


def calling(*calls: tuple[str, str]) -> dict[str, Any]:
    """A scripted reply that calls tools."""
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


async def test_after_clear_mind_the_question_is_answered_with_the_note(start_agent: StartAgent, tmp_path: Path) -> None:
    script = (
        {"text": "Noted."},
        calling(("add_reminder", '{"content": "The gauge is at the north pier."}')),
        calling(("clear_mind", '{"reminder_content": "First step: read the gauge."}')),
        {"text": "The gauge is at the north pier."},
    )
    store = SqliteStore(tmp_path / "session.db")
    async with start_agent(agent=dominds("v3"), store=store, script=script, fixed_usage=(CRITICAL,) * 3) as s:
        await s.ask("Remember the gauge.")
        assert await s.ask("Where is the gauge?") == "The gauge is at the north pier."
        assert "cleared:the agent cleared its mind" in s.recorder.words("coder")
        sent = [str(m["content"]) for m in s.main_requests[-1].body["messages"]]
        assert sent[-1] == "Where is the gauge?"
        assert not any("Remember the gauge" in text for text in sent)
        note_, package = s.agent.conversation.state.reminders.all
        assert (note_.package.created_by, note_.package.level) == ("context_health", "critical")
        assert package.package.created_by == "clear_mind"
        assert "First step: read the gauge." in reminded(s.main_requests[-1])
        await s.recorder.until(lambda: len(s.recorder.sent_by("coder", "chat")) == 2)
    async with start_agent(agent=dominds("v3"), store=SqliteStore(tmp_path / "session.db")) as s:
        await s.control("clear")
        await s.recorder.first("coder", "participant/status", status="cleared")
        await s.ask("Still there?")
        assert "north pier" in reminded(s.main_requests[0])


@pytest.mark.parametrize("order", [("clear_mind", "explode"), ("explode", "clear_mind")])
async def test_clear_mind_is_refused_when_another_call_failed(start_agent: StartAgent, order: tuple[str, str]) -> None:
    def explode() -> str:
        """Fails."""
        raise OSError("no such pier")

    arguments = {"clear_mind": '{"reminder_content": "lost?"}', "explode": "{}"}
    script = (calling(*((name, arguments[name]) for name in order)), {"text": "I see."})
    async with start_agent(agent=dominds("v3"), tools=[explode], script=script) as s:
        assert await s.ask("Go on.") == "I see."
        results = {m["content"] for m in s.main_requests[1].body["messages"] if m["role"] == "tool"}
        assert any("nothing was cleared, because explode failed" in text for text in results)
        assert not s.agent.conversation.state.reminders.all
        assert not any(word.startswith("cleared") for word in s.recorder.words("coder"))


async def test_idle_maintenance_ends_with_a_cleared_mind_and_sends_no_chat(start_agent: StartAgent) -> None:
    script = ({"text": "Noted."}, calling(("clear_mind", '{"reminder_content": "Start at the pier."}')))
    async with start_agent(agent=dominds("v3"), script=script, fixed_usage=prompts(150_000, 150_000)) as s:
        await s.ask("Remember the pier.")
        await s.recorder.first("coder", "participant/status", status="cleared:the agent cleared its mind")
        assert len(s.recorder.sent_by("coder", "chat")) == 1
        assert await s.ask("Where do we start?")
        assert "Start at the pier." in reminded(s.main_requests[-1])


async def test_d22_large_results_are_withheld_at_caution_and_critical(start_agent: StartAgent) -> None:
    def fetch(size: int) -> str:
        """Fetch this many bytes."""
        return "é" * (size // 2) + "x" * (size % 2)

    agent = {
        **dominds("v3", 272 * K, optimal_max_tokens=200 * K, withhold_tool_results_above_bytes=2000),
        "upkeep": False,
    }
    usage = prompts(210_000, 210_000, 210_000, 210_000, None, 1000, 1000)
    script = [
        reply for size in (2000, 2001, 2001, 2001) for reply in (calling(("fetch", f'{{"size": {size}}}')), NOTED)
    ]
    async with start_agent(agent=agent, tools=[fetch], script=script, fixed_usage=usage) as s:
        await requested(s, 4)
        results = [item.content for item in s.agent.conversation.history.items if item.role == "tool"]
        assert ["withheld" in text for text in results] == [False, True, True, False]
        assert "The call succeeded, but its result of 2,001 bytes was withheld" in results[1]
        assert "level caution" in results[2]


@pytest.mark.parametrize(("size", "is_prompted"), [(2000, True), (2001, False)])
async def test_a_withheld_result_replaces_the_prompt_of_that_round(
    start_agent: StartAgent, size: int, is_prompted: bool
) -> None:
    """The prompt is not repeated later: the cadence continues as if it had been sent."""

    def fetch(size: int) -> str:
        """Fetch this many bytes."""
        return "x" * size

    agent = {**dominds("v3", withhold_tool_results_above_bytes=2000, caution_cadence_generations=2), "upkeep": False}
    fetching = calling(("fetch", f'{{"size": {size}}}'))
    script = [fetching, calling(("fetch", '{"size": 1}')), calling(("fetch", '{"size": 2}')), NOTED]
    async with start_agent(agent=agent, tools=[fetch], script=script, fixed_usage=prompts(*[150_000] * 4)) as s:
        await requested(s, 1)
        prompted = [sum(NOTICE in str(m["content"]) for m in r.body["messages"]) for r in s.main_requests]
        assert prompted == [0, int(is_prompted), int(is_prompted), int(is_prompted) + 1]


async def test_reminders_can_be_offered_under_any_policy(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        assert not any(spec.name == "clear_mind" for spec in s.agent.tools.specs())
    async with start_agent(agent={"reminders": True}) as s:
        await s.ask('call add_reminder with {"content": "The pier is long."}')
        await s.ask("Go on.")
        assert "The pier is long." in reminded(s.main_requests[-1])
        assert s.agent.conversation.state.reminders.all[0].package is None
