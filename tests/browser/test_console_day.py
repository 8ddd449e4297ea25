"""A day in the browser: a real gateway with a state folder, a real agent on the rehearsal model, a tool of a peer."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mew_board.composition import prefix_name
from mew_protocol.context_report import Spending
from mew_protocol.payloads.participant import PrefixPart
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from playwright.async_api import Locator, Page, expect

from mew_agent.agent.agent import Agent
from mew_agent.config.agent_config import AgentConfig
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RehearsalOptions, RehearsalServer, serve_rehearsal
from mew_agent.parts.rehearsal.rehearsal_options import ScriptedReply, ScriptedToolCall
from tests.browser.conftest import Tab
from tests.support.cli import mew, seat
from tests.support.waiting import until

SPACE = """
space: {id: review, name: Review room}
participants:
  ada: {capabilities: [{kind: "**"}]}
  coder:
    command: "true"
    role: agent
  files: {command: "true", role: tool}
"""

PROPOSAL = ScriptedReply(
    tool_calls=(ScriptedToolCall(name="files__write", arguments='{"path": "a.py", "text": "x = 1"}'),)
)


@pytest.fixture
def config() -> SpaceConfig:
    return parse_space(SPACE)


@asynccontextmanager
async def running_coder(gateway: RunningGateway, server: RehearsalServer) -> AsyncIterator[Agent]:
    """A real agent."""
    model = OpenAIModel("rehearsal", server.base_url, "key", max_retries=0)
    values = {"id": "coder", "model": "rehearsal", "base_url": server.base_url, "space": "review"}
    settings = AgentConfig.model_validate({**values, "gateway": gateway.ws_url, "token": gateway.token_of("coder")})
    agent = Agent(settings, model)
    try:
        async with agent, anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run)
            yield agent
            tasks.cancel_scope.cancel()
    finally:
        await model.aclose()


@asynccontextmanager
async def running_files(gateway: RunningGateway) -> AsyncIterator[list[str]]:
    """A participant with a tool; the list has the paths that were written."""
    written: list[str] = []
    me = Participant(gateway.ws_url, space="review", id="files", token=gateway.token_of("files"))

    @me.tool
    def write(path: str, text: str) -> str:
        """Write a file."""
        written.append(path)
        return f"wrote {len(text)} characters"

    async with me:
        yield written


async def say(page: Page, text: str) -> None:
    """Send a message with the composer."""
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Message")).to_have_value("")


def turns(page: Page) -> Locator:
    """The answers of the agent that are complete."""
    return page.get_by_role("log").locator(".turn[data-state=done]:has(.markdown)")


async def assert_one_truth(page: Page, gateway: RunningGateway, agent: Agent) -> None:
    """The agent's own status, the board, the row, the details and the gauge agree on figure, window and basis."""

    async def shown() -> tuple[Any, ...]:
        meter = page.get_by_role("meter", name="Context of coder")
        label = await page.locator("[data-id=coder]").get_attribute("aria-label") or ""
        found = re.search(r"~?([\d,]+) of ([\d,]+) tokens, (.*)", label)
        numbers = [await meter.get_attribute(f"aria-value{name}") for name in ("now", "max")]
        amount = (await page.locator("#detail .amount").inner_text()).removeprefix("~").replace(",", "")
        row = () if found is None else (found[1].replace(",", ""), found[2].replace(",", ""), found[3])
        return (*row, *numbers, amount)

    async def agrees() -> bool:
        own, entry = agent.conversation.status(), {one.id: one for one in gateway.board().participants}["coder"]
        if own.context is None or entry.status is None or entry.status.context is None or own.tokens is None:
            return False
        basis = own.context.basis.replace("_", " ")
        same = (entry.status.tokens, entry.status.context.basis) == (own.tokens, own.context.basis)
        expected = (str(own.tokens), str(own.max_tokens), basis, str(own.tokens), str(own.max_tokens), str(own.tokens))
        return same and await shown() == expected

    await until(agrees, every_seconds=0.05)


async def assert_one_prefix(page: Page, gateway: RunningGateway) -> None:
    """The parts of the prefix, and what all calls cost, are the same in the page, a table, JSON, metrics and HTTP."""
    given = json.loads((await mew("context", "show", "coder", "--json", *seat(gateway))).out)
    table = (await mew("context", "show", "coder", *seat(gateway))).out
    await page.locator("#detail .parts summary").click()
    rows = page.locator("#detail .parts .parts li:not(.whole)")
    await expect(rows).to_have_count(len(given["prefix"]))
    for row, one in zip(await rows.all(), given["prefix"], strict=True):
        part = PrefixPart.model_validate(one)
        mark = "" if part.basis in ("exact", "reported", "server_counted", "tokenizer") else "~"
        await expect(row).to_contain_text(f"{prefix_name(part)}{mark}{part.tokens:,}")
        assert re.search(rf"^  {re.escape(prefix_name(part))} +{mark}{part.tokens:,} ", table, re.MULTILINE)
    names = [await one.inner_text() for one in await page.locator("#detail .parts > li .part-name").all()]
    assert all(name.strip() in table for name in names)
    spent = given["context"]["spending"]
    entry = {one.id: one for one in gateway.board().participants}["coder"]
    assert entry.status is not None
    assert entry.status.context is not None
    assert entry.status.context.spending == Spending.model_validate(spent)
    whole = f"{spent['prompt_tokens'] + spent['completion_tokens']:,} tokens in {spent['calls']} calls"
    await expect(page.locator("#detail .facts")).to_contain_text(whole)
    async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
        headers = {"authorization": f"Bearer {gateway.token_of('ada')}"}
        metrics = (await http.get(f"{gateway.url}/metrics", headers=headers)).text
    (value,) = re.findall(
        r'^mew_context_spent_tokens_total\{.*participant="coder".*\} ([\d.e+]+)$', metrics, re.MULTILINE
    )
    assert float(value) == spent["prompt_tokens"] + spent["completion_tokens"]


async def test_a_day_in_the_browser(config: SpaceConfig, tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    options = RehearsalOptions(window_tokens=4096, visible_reasoning="I look first.", script=(PROPOSAL,))
    async with serve_rehearsal(options) as server:
        async with serve_gateway(config, state=tmp_path) as gateway:
            async with running_files(gateway) as written, running_coder(gateway, server) as agent:
                await until(lambda: "files__write" in [tool.name for tool in agent.tools.specs()])
                await page.goto(f"{gateway.url}/dashboard#token={gateway.token_of('ada')}&space=review&participant=ada")
                await expect(page.locator("#detail-title")).to_have_text("coder")

                await say(page, "Write a.py, please.")  # the agent may only propose the call
                await page.locator("#queue").get_by_role("button", name="Approve").click()
                await expect(turns(page)).to_have_count(1)
                assert written == ["a.py"]
                await expect(page.locator("#queue")).to_be_hidden()
                await expect(page.get_by_role("log")).to_contain_text("approved by ada")
                await assert_one_truth(page, gateway, agent)
                await assert_one_prefix(page, gateway)

                widths = [
                    await page.locator("#detail .gauge-fill").evaluate("one => one.getBoundingClientRect().width")
                ]
                for number in range(3):
                    await say(page, f"Question {number}: {'what does the parser do with this line? ' * 20}")
                    await expect(turns(page)).to_have_count(number + 2)
                await assert_one_truth(page, gateway, agent)
                fill = page.locator("#detail .gauge.large .gauge-fill")
                widths.append(await fill.evaluate("one => one.getBoundingClientRect().width"))
                assert widths[1] > widths[0]

                await say(page, "/compact long review ahead")
                await expect(page.locator("#composer-answer")).to_have_text(
                    re.compile(r"^coder: Freed ~?[\d,]+ tokens")
                )
                await assert_one_truth(page, gateway, agent)
                cut = page.locator("#detail .cut-list > details")
                await cut.locator("> summary").click()
                await expect(cut).to_contain_text("What replaced it")
                await expect(cut).to_contain_text("asked byada")
                await page.get_by_role("button", name="Undo compaction 1 of coder").click()
                await expect(page.locator("#detail > .answer")).to_have_text(re.compile(r"^Undid \d+; "))
                await assert_one_truth(page, gateway, agent)
                await page.get_by_role("button", name="Pause: coder").click()
                await page.get_by_role("button", name="Pause", exact=True).click()
                await page.get_by_role("button", name="Resume: coder").click()
                await expect(page.get_by_role("button", name="Pause: coder")).to_be_visible()
            tokens, port = gateway.tokens, gateway.port
        await expect(page.locator("#connection-text")).to_contain_text("connection lost")
        async with serve_gateway(config, state=tmp_path, port=port, tokens=tokens) as gateway:
            await page.get_by_text("live", exact=True).wait_for()
            async with running_coder(gateway, server):
                count = await turns(page).count()
                await say(page, "Are you still there?")
                await expect(turns(page)).to_have_count(count + 1)
                await page.reload()
                await expect(turns(page)).to_have_count(count + 1)  # the gateway kept the conversation
                await page.set_viewport_size({"width": 390, "height": 800})
                await page.get_by_role("navigation").get_by_role("button", name="Details").click()
                await expect(page.locator("#detail .plot")).to_be_visible()
    assert [one for one in tab.complaints if "ERR_" not in one] == []
