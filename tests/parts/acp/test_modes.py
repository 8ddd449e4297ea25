"""The modes of an ACP agent: it begins in one that asks, and people see when it works in another."""

from datetime import UTC, datetime
from typing import Any

import pytest
from mew_board.attention import entry_items
from mew_protocol.payloads.attention_items import AttentionItem
from mew_protocol.payloads.participant import BoardEntry, Status

from mew_agent.parts.acp.profiles import profiles
from tests.parts.acp.conftest import Start

ASKING = {"OPENCODE_PERMISSION": profiles()["opencode"].asking_environment["OPENCODE_PERMISSION"]}


def items_of(status: dict[str, Any]) -> list[tuple[str, str]]:
    """The kinds and levels of what needs a person, as the board shows it."""
    entry = BoardEntry(id="codex", connected=True, status=Status.model_validate(status))
    return [(one.kind, one.level) for one in _items(entry)]


def has_mode(status: dict[str, Any]) -> bool:
    return "mode" in status.get("context", {})


def _items(entry: BoardEntry) -> tuple[AttentionItem, ...]:
    return entry_items(entry, now=datetime.now(UTC))


@pytest.mark.parametrize(("style", "mode"), [("claude", "default"), ("codex", "read-only")])
async def test_a_session_begins_in_a_mode_that_asks(start: Start, style: str, mode: str) -> None:
    async with start(style) as s:
        assert f"mode {mode}," in await s.ask("which mode?")
        status = await s.until_status(has_mode)
        assert status["context"]["mode"] == {"id": mode, "asks": True, "chosen": False}
        assert items_of(status) == []
        await s.ada.send("participant/clear", {}, to="codex")
        await s.until_status(lambda body: body["status"] == "cleared")
        assert f"mode {mode}," in await s.ask("which mode?")


async def test_a_loaded_session_is_set_to_ask_again(start: Start) -> None:
    async with start("claude") as s:
        await s.ask("hello")
        await s.ask("crash now")
        assert "mode default," in await s.ask("which mode?")
        assert await s.ask("session?") == "loaded session: ada: session?"


async def test_an_agent_without_asking_modes_gets_variables_that_make_it_ask(start: Start) -> None:
    async with start("opencode", env={"AGENT_STYLE": "opencode"}) as s:
        assert await s.ask("which mode?") == f"mode auto, environment {ASKING['OPENCODE_PERMISSION']}"
        status = await s.until_status(has_mode)
        assert status["context"]["mode"] == {"id": "build", "asks": True, "chosen": False}
    async with start("opencode", mode="plan") as s:
        assert await s.ask("which mode?") == "mode plan, environment"
        status = await s.until_status(has_mode)
        assert status["context"]["mode"] == {"id": "plan", "chosen": True}


async def test_a_configured_mode_is_set_and_needs_no_person(start: Start) -> None:
    async with start("claude", mode="auto") as s:
        assert "mode auto," in await s.ask("which mode?")
        status = await s.until_status(has_mode)
        assert status["context"]["mode"] == {"id": "auto", "asks": False, "chosen": True}
        assert items_of(status) == []


@pytest.mark.parametrize(("style", "offered"), [("claude", "auto, default"), ("plain", "none")])
async def test_a_mode_that_is_not_offered_ends_the_start(start: Start, style: str, offered: str) -> None:
    async with start(style, mode="careful", max_restarts=0) as s:
        status = await s.until_status(lambda body: body["status"].startswith("failed:"))
        assert f"has no mode 'careful'; set `acp.mode` to one it offers: {offered}" in status["status"]


async def test_an_agent_that_cannot_be_made_to_ask_needs_a_person(start: Start) -> None:
    async with start("claude", env={"AGENT_STYLE": "claude", "AGENT_REFUSES": "1"}) as s:
        status = await s.until_status(has_mode)
        assert status["context"]["mode"] == {"id": "auto", "asks": False, "chosen": False}
        assert items_of(status) == [("acts_unasked", "warning")]


async def test_a_change_into_a_mode_that_does_not_ask_is_shown_at_once(start: Start) -> None:
    async with start("claude") as s:
        await s.ask("change your mode to auto")
        status = await s.until_status(lambda body: body.get("context", {}).get("mode", {}).get("id") == "auto")
        assert items_of(status) == [("acts_unasked", "warning")]
        await s.ask("change your mode to default")
        status = await s.until_status(lambda body: body.get("context", {}).get("mode", {}).get("id") == "default")
        assert items_of(status) == []


async def test_a_mode_of_an_unknown_agent_is_shown_as_unknown(start: Start) -> None:
    async with start("stranger-modes") as s:
        assert "mode auto," in await s.ask("which mode?")
        status = await s.until_status(has_mode)
        assert status["context"]["mode"] == {"id": "auto", "chosen": False}
        assert items_of(status) == [("acts_unasked", "notice")]
