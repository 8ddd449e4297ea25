"""What takes long in the dashboard: compactions, older messages, and catching up after a lost connection."""

import json
import re
from typing import Any

from mew_protocol import kinds
from mew_spaces.gateway.gateway import RunningGateway
from playwright.async_api import expect

from tests.browser.conftest import Join, OpenDashboard
from tests.browser.scripts import COUNTED_BEHIND
from tests.browser.test_dashboard import REPORTED, WINDOW, log, part, row
from tests.support.space_logs import commit


async def test_a_compaction_shows_its_progress_and_what_is_unknown(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        since = await page.evaluate("new Date().toISOString()")
        work = {"kind": "compaction", "done": 2, "total": 5, "unit": "pieces", "since": since}
        await coder.report(tokens=90_000, **WINDOW, status="compacting", context={**REPORTED, "progress": work})
        bar = page.get_by_role("progressbar", name="compaction")
        await expect(bar).to_have_attribute("aria-valuetext", re.compile("^compaction: piece 3 of 5, "))
        await expect(row(page, "coder")).to_contain_text("compacting 2/5")
        cut = {"at": since, "trigger": "next_task", "reason": "the next task needs 9,000", "basis": "projected"}
        await coder.report(
            tokens=50_000,
            **WINDOW,
            status="compaction_due:the next task needs 9,000",
            context={**REPORTED, "last_compaction": cut},
        )
        await expect(bar).to_be_hidden()
        await expect(row(page, "coder")).to_contain_text("compaction due")
        await expect(part(page, "remark").first).to_contain_text("the next task needs 9,000")
        await expect(log(page)).to_contain_text("coder compacted: next task")
        await expect(row(page, "coder")).to_have_attribute("title", re.compile("^compacted: next task$", re.MULTILINE))


async def test_older_messages_load_above_and_missed_ones_are_counted(
    gateway: RunningGateway, open_dashboard: OpenDashboard
) -> None:
    def say(first: int, last: int) -> None:
        for number in range(first, last):
            envelope: dict[str, Any] = {
                "protocol": "mew/v0.4",
                "id": f"e{number}",
                "ts": f"2026-01-01T10:00:{number % 60:02}Z",
            }
            envelope |= {"from": "coder", "to": [], "kind": kinds.CHAT, "payload": {"text": f"message {number}"}}
            gateway.service.log.stage(json.dumps(envelope).encode(), sender="coder", id=f"e{number}", at=0.0)
            commit(gateway.service.log)

    say(0, 900)
    page = await open_dashboard()
    chats = log(page).locator(".chat .markdown")
    await expect(chats).to_have_count(500)
    await expect(chats.first).to_have_text("message 400")
    await chats.first.scroll_into_view_if_needed()
    await expect(chats).not_to_have_count(500)
    seen = chats.filter(has_text=re.compile("^message 400$"))
    await expect(seen).to_be_in_viewport()
    await page.get_by_role("log").evaluate("list => (list.scrollTop = 0)")
    await expect(page.get_by_text("These are the oldest messages that the gateway keeps.")).to_be_visible()
    await expect(chats).to_have_count(900)
    assert await chats.all_inner_texts() == [f"message {number}" for number in range(900)]
    # What a reader missed is counted while it arrives; 12 events are not worth a word.
    assert await page.evaluate(COUNTED_BEHIND) == [["0 of 300", "299 of 300"], []]
