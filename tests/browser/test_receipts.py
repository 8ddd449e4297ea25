"""The page tells what became of a message, and sends urgent ones."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mew_board import receipt_words
from mew_protocol import kinds
from mew_protocol.json_values import objects_at
from mew_protocol.payloads.read_receipts import ReadReceipt
from mew_spaces.gateway.gateway import RunningGateway
from playwright.async_api import Locator, Page, expect

from mew_agent.parts.rehearsal import RehearsalServer, serve_rehearsal
from tests.browser.conftest import Join, OpenDashboard, inaccessible
from tests.browser.test_dashboard import log
from tests.support.agents import running_agent
from tests.support.rehearsal_model import rehearsal_options
from tests.support.waiting import PATIENCE_SECONDS

CALL = {"number": 14, "id": "c", "at": "2026-01-01T12:00:00Z"}
RECEIPTS: list[dict[str, Any]] = [
    {"state": "stored", "in_context": "unknown", "basis": "gateway"},
    {"state": "queued", "in_context": "no", "place": 2, "reason": "it waits for its sender's choice"},
    {"state": "in_prompt", "in_context": "whole", "call": CALL, "history": [{"what": "in_prompt", "call": 14}]},
    {"state": "answered", "in_context": "unknown", "call": CALL, "reason": "the agent compacted its context itself"},
    {"state": "answered", "in_context": "recoverable", "call": CALL},
    {
        "state": "answered",
        "in_context": "summary",
        "summary": "quoted",
        "compaction": 3,
        "call": CALL,
        "history": [{"what": "summary", "trigger": "requested", "compaction": 3}, {"what": "undone"}],
    },
]

LONG = " ".join(f"Station {number} measured {number * 7} units of water today." for number in range(20))


@asynccontextmanager
async def answering_agent(gateway: RunningGateway, *tools: Any, **settings: Any) -> AsyncIterator[RehearsalServer]:
    """Run `coder`, an agent of ours on the rehearsal model."""
    settings = {"space": "review", **settings}
    async with (
        serve_rehearsal(rehearsal_options()) as server,
        running_agent(gateway, server, settings, None, 30.0, "coder", tools),
    ):
        yield server


async def say(page: Page, line: str) -> None:
    """Send a line of the composer to coder."""
    await page.get_by_label("To", exact=True).select_option("coder")
    await page.get_by_label("Message").fill(line)
    await page.keyboard.press("Escape")  # completion
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.get_by_label("Message")).to_have_value("")


def entry(page: Page, text: str) -> Locator:
    """The message with a text, without those that answer it."""
    return log(page).locator(".chat[data-mine=true]", has_text=text)


async def test_a_tick_opens_the_receipt_of_a_message(gateway: RunningGateway, open_dashboard: OpenDashboard) -> None:
    page = await open_dashboard()
    async with answering_agent(gateway):
        await say(page, "Decision: we deploy on Fridays only.")
        said = entry(page, "we deploy on Fridays only")
        tick = said.get_by_text("✓ read by coder in call 1", exact=True)
        await tick.wait_for()
        story = said.locator(".story")
        await expect(story).to_be_hidden()
        await said.locator("summary").focus()
        await page.keyboard.press("Enter")
        await expect(story.locator("p")).to_have_text("read by coder in call 1; in its context word for word")
        await expect(story.locator("li").nth(0)).to_contain_text("in prompt 1")
        await expect(story.locator("li").nth(0).locator("time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
        await expect(story.locator("li").nth(1)).to_contain_text("answered")
        assert await inaccessible(page, schemes=["light"]) == []
        for number in range(3):
            await say(page, f"Question {number}? {LONG}")
            await entry(page, f"Question {number}?").get_by_text(f"✓ read by coder in call {number + 2}").wait_for()
        await say(page, "/compact")
        await expect(page.locator("#composer-answer")).to_contain_text("Freed")
        await said.get_by_text("✓ read by coder in call 1, now in its summary", exact=True).wait_for()
        changed = "read by coder in call 1; only in the summary of compaction 1, quoted"
        await expect(story.locator("p")).to_have_text(changed)
        await expect(story.locator("li").nth(2)).to_contain_text("summary (requested 1)")
        await said.locator("summary").click()
        await expect(story).to_be_hidden()


async def test_an_unavailable_receipt_gives_the_reason(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await say(page, "Hello.")
        asked = (await coder.received(kinds.CHAT))["id"]
        receipt = {"id": asked, "participant": "coder", "state": "in_prompt", "in_context": "whole", "call": CALL}
        payload = {"status": "read", "receipt": {**receipt, "basis": "prompt"}}
        await coder.send_envelope(kinds.CHAT_ACKNOWLEDGE, payload, to=["ada"], about=[asked])
        await entry(page, "Hello.").locator("summary").click()
        question = await coder.received(kinds.PARTICIPANT_REQUEST_RECEIPTS)
        assert question["payload"] == {"ids": [asked], "sender": "ada"}
        await coder.report(status="refused: it is busy", to=["ada"], about=[question["id"]])
        await expect(entry(page, "Hello.").locator(".story")).to_have_text("Refused: it is busy.")


async def test_page_and_terminal_tell_a_receipt_alike(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        for number, values in enumerate(RECEIPTS):
            await say(page, f"Message {number}.")
            asked = (await coder.received(kinds.CHAT))["id"]
            receipt = ReadReceipt.model_validate({"id": asked, "participant": "coder", "basis": "prompt", **values})
            shown = receipt.model_dump(mode="json", exclude_none=True)
            payload = {"status": "read", "receipt": {**shown, "participant": "eve"}}  # an agent speaks of itself
            await coder.send_envelope(kinds.CHAT_ACKNOWLEDGE, payload, to=["ada"], about=[asked])
            said = entry(page, f"Message {number}.")
            await expect(said.locator("summary")).to_have_text(receipt_words.mark(receipt))
            await said.locator("summary").click()
            question = await coder.received(kinds.PARTICIPANT_REQUEST_RECEIPTS)
            answer = {"receipts": [shown]}
            await coder.send_envelope(kinds.PARTICIPANT_RECEIPTS, answer, to=["ada"], about=[question["id"]])
            await expect(said.locator(".story > p")).to_have_text(receipt_words.line(receipt))
            steps = said.locator(".story li")
            await expect(steps).to_have_count(len(receipt.history))
            for place, (_, words) in enumerate(receipt_words.steps(receipt)):
                await expect(steps.nth(place)).to_contain_text(words)


async def test_an_urgent_message_is_marked_and_read_during_a_turn(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    entered, opened = anyio.Event(), anyio.Event()

    async def look() -> str:
        """Look something up."""
        entered.set()
        await opened.wait()
        return "Door 4 is closed."

    page = await open_dashboard()
    async with answering_agent(gateway, look, between_steps="urgent") as server, join("eve") as eve:
        await eve.send_envelope(kinds.CHAT, {"text": "call look with {}"}, to=["coder"])
        with anyio.fail_after(PATIENCE_SECONDS):
            await entered.wait()
        await say(page, "Good morning?")
        await say(page, "/urgent Stop: door 4 is on fire.")
        said = entry(page, "Stop: door 4 is on fire.")
        await expect(said.locator(".state.urgent")).to_have_text("urgent")
        await expect(entry(page, "Good morning?").locator(".state.urgent")).to_have_count(0)
        opened.set()
        await said.get_by_text("✓ read by coder in call 2").wait_for()
        await entry(page, "Good morning?").get_by_text("✓ read by coder in call 3").wait_for()
        roles = [one["role"] for one in objects_at(server.requests[1].body, "messages")]
        assert roles == ["system", "user", "assistant", "tool", "user"]
