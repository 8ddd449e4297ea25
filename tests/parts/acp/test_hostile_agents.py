"""ACP agents that break the protocol: the session survives, and no figure is shown that is not the agent's."""

import json

import anyio
import pytest

from mew_agent.parts.acp.terminals import MAX_TERMINALS, terminals_below
from tests.parts.acp.conftest import SPACE, Start

ENDED = {"id": "NUMBER", "result": {"stopReason": "end_turn"}}


def lines(*messages: object) -> str:
    """A chat that makes the agent write these lines. NUMBER stands for the id of the running prompt."""
    return "write " + "NEWLINE".join(json.dumps(one) for one in messages).replace('"NUMBER"', "NUMBER")


def update(kind: str, session: str = "s-1", **values: object) -> dict[str, object]:
    return {"method": "session/update", "params": {"sessionId": session, "update": {"sessionUpdate": kind, **values}}}


def used(tokens: object, session: str = "s-1") -> dict[str, object]:
    return update("usage_update", session, used=tokens, size=20_000)


@pytest.mark.parametrize(
    ("chat", "answer"),
    [
        (
            lines({"id": "NUMBER", "error": "no paper"}),
            "I cannot answer: the ACP agent 'PYTHON' refused session/prompt: no paper.",
        ),
        (lines({"id": "NUMBER", "result": [1]}), "(no text)"),
        (lines({"id": ["NUMBER"], "result": {}}, ENDED), "(no text)"),
        (lines({"id": {}, "error": None}, ENDED), "(no text)"),
        (f"write {'[' * 9_000}NEWLINE{json.dumps(ENDED)}".replace('"NUMBER"', "NUMBER"), "(no text)"),
    ],
    ids=["error as text", "result as list", "list as id", "object as id", "deeply nested"],
)
async def test_an_agent_that_breaks_the_protocol_answers_the_next_chat(start: Start, chat: str, answer: str) -> None:
    async with start(agent="codex") as s:
        assert (await s.ask(chat)).replace(s.agent.engine.settings.command or "", "PYTHON") == answer
        assert await s.ask("hello") == "You wrote: ada: hello"
        assert not {"restarting", "failed"} & set(s.recorder.words("codex"))


async def test_a_second_answer_to_a_prompt_ends_no_other_turn(start: Start) -> None:
    async with start() as s:
        await s.ask("hello")
        await s.ask(lines(used(4_242), {"id": 3, "result": {"stopReason": "end_turn"}}, {"id": "x", "result": {}}))
        await s.until_status(lambda body: body.get("tokens") == 2_000)
        shown = [one.body.get("tokens") for one in s.recorder.sent_by("codex", "participant/status")]
        assert 4_242 not in shown


async def test_figures_and_texts_of_other_sessions_are_ignored(start: Start) -> None:
    text = update("agent_message_chunk", "child", content={"type": "text", "text": "I am a subagent."})
    async with start() as s:
        await s.ask("hello")
        assert await s.ask(lines(used(3_000), text, used(77, "child"), ENDED)) == "(no text)"
        await s.until_status(lambda body: body.get("tokens") == 3_000)


@pytest.mark.parametrize("tokens", [2**70, 10**12, -5, float("nan"), "12", None, True])
async def test_an_impossible_figure_is_unknown_and_the_last_one_apart(start: Start, tokens: object) -> None:
    async with start() as s:
        await s.ask("hello")
        await s.ask(lines(used(tokens), ENDED))
        status = await s.until_status(lambda body: body["context"].get("reason") == "usage_unavailable")
        assert "tokens" not in status
        assert status["context"]["last_reported"]["tokens"] == 1_500
        await s.ask("hello")
        await s.until_status(lambda body: body.get("tokens") == 2_500)


async def test_a_window_without_bounds_is_unknown(start: Start) -> None:
    async with start() as s:
        await s.ask(lines(update("usage_update", used=3_000, size=10**4_000), ENDED))
        status = await s.until_status(lambda body: body.get("tokens") == 3_000)
        assert "max_tokens" not in status


async def test_an_impossible_sum_spends_no_budget(start: Start) -> None:
    async with start() as s:
        usage = {"totalTokens": 2**70}
        await s.ask(lines({"id": "NUMBER", "result": {"stopReason": "end_turn", "usage": usage}}))
        assert await s.ask("hello") == "You wrote: ada: hello"
        (spent,) = s.agent.external_context.spent_for
        assert (spent.tokens, spent.unreported_calls) == (None, 2)


async def test_a_failed_turn_without_a_figure_leaves_the_last_one(start: Start) -> None:
    async with start() as s:
        await s.ask("hello")
        await s.ask(lines({"id": "NUMBER", "error": {"code": -32603, "message": "no paper"}}))
        assert s.agent.external_context.known is not None
        assert s.agent.external_context.known.tokens == 1_500


async def test_a_compaction_whose_end_is_not_reported_ends_with_the_next_turn(start: Start) -> None:
    async with start() as s:
        await s.ask("hello")
        await s.ask(lines(update("compaction_update", compactionId="z", status="in_progress")))
        status = await s.until_status(lambda body: body["status"] == "compacting")
        assert "tokens" not in status
        await s.ask("hello")
        await s.until_status(lambda body: body["status"] == "compaction_failed:the agent did not report its end")
        await s.until_status(lambda body: body.get("tokens") == 2_500)
        assert (await s.ada.compact("codex")).status == "compacted"


async def test_names_in_a_status_are_short(start: Start) -> None:
    async with start() as s:
        cost = {"amount": 1.5, "currency": "x" * 5_000}
        await s.ask(lines(update("usage_update", used=3_000, size=20_000, cost=cost), ENDED))
        await s.ask(lines(update("current_mode_update", currentModeId="y" * 5_000)))
        status = await s.until_status(lambda body: body.get("tokens") == 2_000)
        assert status["context"]["mode"]["id"] == "y" * 200
        assert "spending" not in status["context"]


async def test_an_answer_that_is_too_large_to_send_is_declined_with_the_reason(start: Start) -> None:
    async with start(space=f"{SPACE}limits: {{message_bytes: 16384}}") as s:
        asked = await s.ada.chat("messages 2000", to="codex")
        answer = await s.recorder.first("codex", "chat", about=asked)
        assert answer.body["text"].startswith("My answer was not sent: a message of 2")
        assert answer.body["failure"]["code"] == "failed"
        asked = await s.ada.chat("hello", to="codex")
        assert (await s.recorder.first("codex", "chat", about=asked)).body["text"] == "You wrote: ada: hello"


async def test_terminals_created_at_the_same_time_are_bounded(tmp_path: object) -> None:
    refused: list[str] = []
    async with terminals_below(str(tmp_path), True) as terminals, anyio.create_task_group() as tasks:

        async def create() -> None:
            try:
                await terminals.request("terminal/create", {"command": "sleep", "args": ["600"]})
            except ValueError as error:
                refused.append(str(error))

        for _ in range(MAX_TERMINALS + 5):
            tasks.start_soon(create)
    assert len(refused) == 5
