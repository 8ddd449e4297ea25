"""What an ACP agent spends for one sender, as far as its figures are known."""

import anyio
import pytest

from mew_agent.errors import ChatRefused
from tests.parts.acp.conftest import Start
from tests.support.waiting import PATIENCE_SECONDS


async def test_an_acp_agent_refuses_a_sender_that_spent_its_budget(start: Start, tmp_path: object) -> None:
    settings = {"loop_limits": {"tokens_per_hour": 50}, "store": f"{tmp_path}/codex.db"}
    async with start("qwen", **settings) as stage:
        await stage.ask("hello")
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(ChatRefused, match="of 50 tokens per hour are spent"):
            await stage.ask("again")
        status = await stage.until_status(lambda body: bool(body.get("context", {}).get("waiting")))
    assert [one["kind"] for one in status["context"]["waiting"]] == ["budget"]
    assert status["context"]["spent_for"][0]["participant"] == "ada"
    async with start("qwen", **settings) as stage:
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(ChatRefused):
            await stage.ask("after a restart")


async def test_turns_without_figures_are_unknown_and_not_zero(start: Start) -> None:
    async with start("codex") as stage:
        await stage.ask("hello")
        await stage.ask("again")
        spent = stage.agent.external_context.spent_for
    assert [(one.participant, one.tokens) for one in spent] == [("ada", None)]
    assert spent[0].unreported_calls >= 1
