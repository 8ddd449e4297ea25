"""Rows of the reference table of `mew-reference` that need an agent and the wire; names start with the row.

Where the table and the context report differ, the report counts: an unknown size is left out, and a field filter keeps
the basis and time of the size.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mew_settings.environment import COMPAT_VARIABLE

from mew_agent.context.sqlite_store import SqliteStore

StartAgent = Callable[..., Any]
"""`start_agent(...)` of the conftest."""

K = 1000


def reference(limit: int = 128 * K) -> dict[str, Any]:
    return {"policy": "mew-reference", "context_token_limit": limit}


async def test_m2_calls_without_usage_or_with_an_error_keep_last_reported(start_agent: StartAgent) -> None:
    async with start_agent(agent=reference(), fixed_usage=((70, 12, 82), None)) as s:
        await s.ask("One.")
        assert (await s.status())["tokens"] == 82
        await s.ask("Two.")
        after = await s.status()
        assert after["context"]["last_reported"]["tokens"] == 82
        assert "tokens" not in after
        s.server.change(status=500)
        await s.ask("Three.")
        failed = await s.status()
        assert "tokens" not in failed
        assert failed["context"]["last_reported"]["tokens"] == 82
        assert failed["context"]["stale_messages"] > 0


@pytest.mark.parametrize(("total", "words"), [(115_199, []), (115_200, ["near_limit"])])
async def test_m4_near_limit_is_announced_from_nine_tenths_on(
    start_agent: StartAgent, total: int, words: list[str]
) -> None:
    async with start_agent(agent=reference(), fixed_usage=((total - 10, 10, total),)) as s:
        await s.ask("One.")
        await s.status()
        said = [(status["status"], status.get("tokens")) for status in s.statuses]
        assert [one for one in said if one[0] == "near_limit"] == [(word, total) for word in words]


def cooled(seconds: float) -> dict[str, Any]:
    """An agent's configuration: `mew-reference` with another cooldown."""
    at_nine_tenths = {"figure": "used", "op": "ge", "fraction": "9/10"}
    rule = {
        "action": "near_limit",
        "when": [at_nine_tenths],
        "rearm_below": "3/4",
        "cooldown_seconds": seconds,
    }
    return {**reference(), "policy": {"name": "cooled", "based_on": "mew-reference", "rules": [rule]}}


async def announced(start_agent: StartAgent, agent: dict[str, Any], store: SqliteStore, *totals: int) -> int:
    """How often an agent announces `near_limit` while its calls report these totals."""
    usage = tuple((total - 10, 10, total) for total in totals)
    async with start_agent(agent=agent, store=store, fixed_usage=usage) as s:
        for number in range(len(totals)):
            await s.ask(f"Note number {number}.")
            await s.status()
        return int(s.recorder.words("coder").count("near_limit"))


@pytest.mark.parametrize("agent", [reference(), cooled(60)], ids=["mew-reference", "the same in a file"])
async def test_near_limit_is_postponed_during_the_cooldown(
    start_agent: StartAgent, tmp_path: Path, agent: dict[str, Any]
) -> None:
    """A total below 3/4 arms the announcement again; the preset's 60 seconds then postpone it."""
    store = SqliteStore(tmp_path / "session.db")
    assert await announced(start_agent, agent, store, 115_200, 95_999, 115_200) == 1


async def test_a_postponed_near_limit_is_announced_after_the_cooldown(start_agent: StartAgent, tmp_path: Path) -> None:
    path = tmp_path / "session.db"
    assert await announced(start_agent, cooled(60), SqliteStore(path), 115_200, 95_999, 115_200) == 1
    assert await announced(start_agent, cooled(0), SqliteStore(path), 115_200, 115_200) == 1


async def test_m8_a_useless_compaction_is_not_repeated_every_call(start_agent: StartAgent) -> None:
    agent = {**reference(), "conversation_history_length": 0}
    async with start_agent(agent=agent, fixed_usage=((124_990, 10, 125_000),) * 6) as s:
        for number in range(6):
            await s.ask(f"Note number {number}.")
            await s.status()
        words = s.recorder.words("coder")
        assert words.count("compaction_stalled:no_history") == 1
        assert "compacting" not in words, "nothing was ever begun"
        assert "compaction_stalled" in words, "and every later status says that it stopped trying"
        assert not s.summary_requests


async def test_m9_a_target_above_the_present_size_is_skipped(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPAT_VARIABLE, "reference")
    async with start_agent(agent=reference(), fixed_usage=((11_990, 10, 12 * K),)) as s:
        await s.ask("One.")
        sent = await s.control("compact", {"target_tokens": 16_000})
        await s.recorder.first("coder", "participant/status", about=sent, status="compacted")
        said = s.recorder.sent_by("coder", about=sent)
        assert [str(e.body["status"]) for e in said] == ["compacting", "skipped", "compacted"]
        done = said[1].body
        assert (done["skipped"], done["reason"]) == (True, "already_below_target")
        assert said[1].addressees == ("ada",)
        assert (await s.status())["tokens"] == 12 * K


async def test_m10_a_requested_compaction_says_what_it_freed(
    start_agent: StartAgent, text: Callable[[int], str]
) -> None:
    async with start_agent(agent=reference(8 * K), window_tokens=8 * K) as s:
        for _ in range(6):
            await s.ask(text(500))
        before = await s.status()
        sent = await s.control("compact", {"target_percent": 30})
        done = (await s.recorder.first("coder", "participant/compact-done", about=sent)).body
        await s.recorder.first("coder", "participant/status", about=sent, status="compacted")
        assert (done["skipped"], done["tokens_before"]) == (False, before["tokens"])
        assert done["tokens_before"] - done["tokens_after"] == done["freed_tokens"] > 0
        after = await s.status()
        assert before["messages_in_context"] - after["messages_in_context"] == done["freed_messages"] > 0
        assert after["tokens"] <= 8 * K * 30 // 100


async def test_m11_forgetting_without_a_number_takes_the_older_half_rounded_up(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPAT_VARIABLE, "reference")
    async with start_agent(agent=reference()) as s:
        await s.ada.chat("It is raining.")
        await s.ask("One.")
        await s.ask("Two.")
        before = (await s.status())["messages_in_context"]
        assert before == 5
        sent = await s.control("forget", {"direction": "oldest"})
        await s.recorder.first("coder", "participant/status", about=sent, status="compacted")
        assert [str(e.body["status"]) for e in s.recorder.sent_by("coder", about=sent)] == ["compacting", "compacted"]
        assert (await s.status())["messages_in_context"] == 2
        assert next(item.content for item in s.agent.conversation.history.items) == "Two."


async def test_m15_a_clear_says_why_and_leaves_no_figure(start_agent: StartAgent) -> None:
    async with start_agent(agent=reference(), fixed_usage=((99_990, 10, 100 * K),)) as s:
        await s.ask("One.")
        sent = await s.control("clear", {"reason": "x"})
        status = await s.recorder.first("coder", "participant/status", about=sent, status="cleared:x")
        assert "tokens" not in status.body
        assert status.body["messages_in_context"] == 0
        assert (status.body["context"]["basis"], status.body["context"]["reason"]) == ("unknown", "cleared")


async def test_m16_a_field_filter_keeps_required_fields_and_the_basis(start_agent: StartAgent) -> None:
    async with start_agent(agent=reference()) as s:
        await s.ask("One.")
        sent = await s.control("request-status", {"fields": ["tokens"]})
        status = await s.recorder.first("coder", "participant/status", about=sent)
        assert set(status.body) == {"tokens", "messages_in_context", "status", "context"}
        assert set(status.body["context"]) == {"basis", "measured_at"}
        sent = await s.control("request-status", {"fields": ["latency_ms"]})
        status = await s.recorder.first("coder", "participant/status", about=sent)
        assert set(status.body) == {"latency_ms", "messages_in_context", "status"}


@pytest.mark.parametrize("policy", ["mew", "lmstudio"])
async def test_an_agent_reports_a_changed_model_until_that_model_reports_usage(
    start_agent: StartAgent, policy: str
) -> None:
    agent = {"policy": policy, "policy_scope": "any", "context_token_limit": 128 * K}
    async with start_agent(agent=agent, fixed_usage=((70, 12, 82), None, (80, 12, 92))) as s:
        await s.ask("One.")
        s.server.change(served_model="fallback")
        await s.ask("Two.")
        status = await s.status()
        assert "tokens" not in status
        assert (status["context"]["basis"], status["context"]["reason"]) == ("unknown", "model_changed")
        assert status["context"]["last_reported"]["tokens"] == 82
        await s.ask("Three.")
        status = await s.status()
        assert (status["tokens"], status["context"]["basis"]) == (92, "reported")
