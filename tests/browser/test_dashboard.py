"""The dashboard in Chromium, served by a gateway, with members connected to the space that follow a script."""

import re
from typing import Any, get_args

import pytest
from mew_protocol import kinds
from mew_protocol.codec import read_draft
from mew_protocol.context_report import PartName
from mew_protocol.ids import ParticipantId
from mew_protocol.payloads.mcp import digest_of
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from playwright.async_api import Locator, Page, Route, expect

from tests.browser.conftest import HOSTILE, Join, Loaded, OpenDashboard, Tab, inaccessible
from tests.browser.scripts import FILLS, NOTIFICATIONS, ODD_ENVELOPES
from tests.support.waiting import until

WINDOW: dict[str, Any] = {"max_tokens": 128_000}

REPORTED: dict[str, Any] = {"basis": "reported", "level": "healthy", "severity": 0, "revision": 0}

COMPACTION = {
    "at": "2026-01-01T10:00:00Z",
    "trigger": "threshold",
    "tokens_before": 116_000,
    "tokens_after": 92_980,
    "freed_tokens": 23_020,
    "freed_gross_tokens": 24_000,
    "summary_tokens": 980,
    "freed_messages": 40,
    "basis": "exact",
}


def row(page: Page, participant: str) -> Locator:
    """The row of a participant in the list."""
    return page.get_by_role("listbox", name="Participants").locator(f"[data-id={participant!r}]")


def part(page: Page, name: str) -> Locator:
    """A part of the details."""
    return page.locator(f"#detail .{name}")


def log(page: Page) -> Locator:
    """The conversation."""
    return page.get_by_role("log")


def answer(page: Page) -> Locator:
    """What came of the last action on the selected participant."""
    return page.locator("#detail > .answer")


async def board_of(page: Page, gateway: RunningGateway) -> dict[str, Any]:
    """The gateway's board, by participant."""
    read = await page.request.get(
        f"{gateway.url}/spaces/review/context", headers={"Authorization": f"Bearer {gateway.token_of('ada')}"}
    )
    return {line["id"]: line for line in (await read.json())["participants"]}


async def assert_same_integers(page: Page, gateway: RunningGateway, participant: str) -> None:
    """The row, the details, the gauge and the gateway's board show the same figures with the same basis."""
    status = (await board_of(page, gateway))[participant]["status"]
    basis = status["context"]["basis"]
    figure = f"{status['tokens']:,} of {status['max_tokens']:,}"
    await expect(row(page, participant)).to_contain_text(f"{figure} · {basis}")
    await expect(part(page, "amount")).to_have_text(f"{status['tokens']:,}")
    await expect(part(page, "figure")).to_contain_text(figure)
    await expect(part(page, "known")).to_contain_text(basis)
    gauge = page.get_by_role("meter", name=f"Context of {participant}")
    await expect(gauge).to_have_attribute("aria-valuenow", str(status["tokens"]))
    await expect(gauge).to_have_attribute("aria-valuemax", str(status["max_tokens"]))


async def test_a_test_leaves_nothing_in_the_page(open_dashboard: OpenDashboard, join: Join, loaded: Loaded) -> None:
    page = await open_dashboard()
    is_fresh = "(fresh) => document.documentElement.isEqualNode(fresh.root)"
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await coder.send_envelope(kinds.CHAT, {"text": "hello"})
        await log(page).get_by_text("hello").wait_for()
        await row(page, "coder").click()
        await page.get_by_label("Message").fill("typed")
        await page.get_by_label("Search participants").fill("cod")
        await page.get_by_label("Group", exact=True).select_option("role")
        await page.get_by_role("button", name="Theme: auto").click()
        await page.get_by_role("button", name="Keyboard help").click()
    assert not await page.evaluate(is_fresh, loaded.fresh)
    await loaded.restore(page)
    assert await page.evaluate(is_fresh, loaded.fresh)
    fields = page.locator(":is(input, textarea, select):not([type=checkbox])")
    assert {*await fields.evaluate_all("all => all.map((one) => one.value)")} == {"", "all", "none"}
    assert await page.evaluate("localStorage.length + sessionStorage.length") == 0


async def test_rows_and_details_show_the_same_integers_as_the_board(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        page = await open_dashboard()
        await assert_same_integers(page, gateway, "coder")  # the only agent is selected
        await coder.report(tokens=104_119, **WINDOW, context={**REPORTED, "turns_to_compaction": 5})
        await expect(part(page, "amount")).to_have_text("104,119")
        await assert_same_integers(page, gateway, "coder")
        await expect(part(page, "known")).to_have_text(re.compile(r"^reported \d+ s ago · compacts in ~5 turns$"))
        await expect(part(page, "level")).to_have_text("healthy · 81%")
        await coder.report(to=["ada"], tokens=7_000)  # an answer with some fields is not the agent's status
        await coder.send_envelope(kinds.CHAT, {"text": "that was all"})
        await log(page).get_by_text("that was all").wait_for()
        await assert_same_integers(page, gateway, "coder")
    assert tab.complaints == []


async def test_an_unknown_amount_shows_the_reason_and_the_last_report(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        last = {"tokens": 98_412, "measured_at": "2026-01-01T10:00:00Z", "call_id": "call-1"}
        unknown = {"basis": "unknown", "reason": "usage_unavailable", "last_reported": last}
        await coder.report(**WINDOW, context={**unknown, "max_tokens_basis": "assumed"})
        await expect(part(page, "amount")).to_have_text("?")
        await expect(part(page, "figure")).to_contain_text("of ~128,000")
        known = re.compile(r"unknown: no usage reported, was 98,412 \d+ d ago")
        await expect(part(page, "known")).to_contain_text(known)
        await expect(row(page, "coder")).to_contain_text(known)
        await expect(page.get_by_role("meter")).to_have_count(0)
        await expect(row(page, "coder")).to_have_attribute("data-tone", "unknown")
        # What was reported last is an outline, which is no figure.
        await expect(row(page, "coder").locator(".gauge")).to_have_attribute("data-pattern", "past")
        await expect(row(page, "coder").locator(".gauge-fill")).to_have_css("background-color", "rgba(0, 0, 0, 0)")


async def test_an_estimate_looks_different_from_a_report(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        fill = page.locator("#detail .gauge.large .gauge-fill")
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await expect(fill).to_have_css("background-image", "none")
        await coder.report(tokens=27_046, **WINDOW, context={**REPORTED, "basis": "projected", "stale_messages": 2})
        await expect(part(page, "amount")).to_have_text("~27,046")
        await expect(row(page, "coder")).to_contain_text("~27,046 of 128,000 · projected")
        await expect(part(page, "remark").first).to_have_text("+2 items since")
        await expect(fill).to_have_css("background-image", re.compile("repeating-linear-gradient"))
        await coder.report(tokens=512, **WINDOW)
        await expect(part(page, "amount")).to_have_text("~512")
        await expect(part(page, "known")).to_contain_text("estimate")
        await expect(fill).to_have_css("background-image", re.compile("repeating-linear-gradient"))


async def test_a_figure_that_is_old_shows_its_age_and_no_projection(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=11_500, **WINDOW)
        await expect(part(page, "known")).to_contain_text("estimate, received")
        await coder.send_envelope("chat", {"text": "done"})
        await expect(part(page, "remark").first).to_contain_text(re.compile(r"figure \d+ s old, messages since"))
        await expect(row(page, "coder")).to_contain_text("messages since")
        await coder.report(tokens=11_600, **WINDOW)
        await expect(row(page, "coder")).not_to_contain_text("messages since")
    async with join("coder"):
        await expect(part(page, "remark").first).to_contain_text("from before it joined")
        await expect(row(page, "coder")).to_contain_text("from before it joined")


async def test_details_show_limit_level_parts_spend_and_savings(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        parts = [
            {"part": "prefix", "tokens": 6_000, "basis": "exact"},
            {"part": "tool_results", "tokens": 103_000, "basis": "projected"},
        ]
        saved = [
            {"text": text, "tokens_saved": tokens, "impact": "low"}
            for text, tokens in (("one", 10), ("drop tool outputs.", 4_200), ("two", 20), ("three", 30))
        ]
        more = {"spent_tokens": 61_000, "budget_tokens": 100_000, "suggestions": saved, "breakdown": parts}
        tokens = {"prompt_tokens": 190_000, "completion_tokens": 8_000, "cached_tokens": 120_000}
        more["spending"] = {"calls": 14, "unreported_calls": 2, **tokens, "amount": 0.41234, "currency": "USD"}
        more["queued"] = {"messages": 3, "tokens": 1_200, "basis": "projected"}
        counting = {"injection": {"kind": "countdown", "remaining": 3, "text": "soon"}}
        near = {**REPORTED, "level": "near_limit", "severity": 2, "compact_at_tokens": 115_200}
        await coder.report(tokens=109_000, **WINDOW, status="near_limit", context={**near, **more, **counting})
        await expect(part(page, "level")).to_have_text("near limit · 85%")
        await expect(part(page, "known")).to_contain_text("compacts at 115,200")
        await expect(part(page, "parts").get_by_role("listitem")).to_have_text(
            [
                "system prompt, tools6,0004.7%",
                "tool results~103,00080.5%",
                "free6,2004.8%",
                "kept free12,80010.0%",
            ]
        )
        place = await page.locator("#detail .gauge-mark").evaluate(
            "mark => (mark.getBoundingClientRect().left + 1 - mark.parentElement.getBoundingClientRect().left)"
            " / mark.parentElement.getBoundingClientRect().width"
        )
        assert place == pytest.approx(0.9, abs=0.002)
        await expect(part(page, "remark").first).to_have_text(
            "near limit · 3 messages queued (~1,200 tokens) · spent 61,000 of 100,000 · countdown (3 left) "
            "· could save ~4,200"
        )
        spent = "198,000 tokens in 14 calls (120,000 cached, 2 more not reported), 0.4123 USD"
        await expect(page.locator("#detail .facts")).to_contain_text(spent)
        await expect(part(page, "savings").get_by_role("listitem")).to_have_text(
            [
                "drop tool outputs (saves ~4,200 tokens, low impact)",
                "three (saves ~30 tokens, low impact)",
                "two (saves ~20 tokens, low impact)",
            ]
        )
        await expect(row(page, "coder")).to_have_attribute("data-tone", "warning")
        await expect(page.locator("#glance")).to_have_text("1 agent · 109,000 of 128,000 tokens in use · 198,000 spent")
        await part(page, "parts").get_by_text("system prompt, tools").click()
        asked = await coder.received(kinds.PARTICIPANT_REQUEST_STATUS)
        assert asked["payload"] == {"fields": ["prefix", "max_tokens"]}
        prefix = [
            {"part": "system_prompt", "tokens": 41, "basis": "tokenizer"},
            {"part": "tool", "name": "read_file", "tokens": 5_000, "basis": "projected"},
            {"part": "other_tools", "count": 7, "tokens": 959, "basis": "projected"},
        ]
        answered = {"messages_in_context": 3, **WINDOW, "prefix": prefix}
        await coder.send_envelope(kinds.PARTICIPANT_STATUS, answered, to=["ada"], about=[asked["id"]])
        await expect(page.locator("#detail .parts .parts li")).to_have_text(
            ["system prompt410.0%", "read_file~5,0003.9%", "7 smaller tools~9590.7%"]
        )


async def test_the_history_keeps_a_mark_for_each_compaction(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        for tokens in (40_000, 90_000, 116_000):
            await coder.report(tokens=tokens, **WINDOW, context=REPORTED)
        now = await page.evaluate("new Date().toISOString()")
        cut = {**COMPACTION, "at": now}
        await coder.report(tokens=45_000, **WINDOW, context={**REPORTED, "last_compaction": cut})
        chart = page.get_by_role("img", name=re.compile("^coder: .*, 1 compaction$"))
        await expect(chart.locator(".cut")).to_have_count(1)
        line = "threshold, 116,000 -> ~92,980, freed 23,020 (exact)"
        await expect(log(page)).to_contain_text(f"coder compacted: {line}")
        await expect(page.locator("#detail .cut summary")).to_contain_text(line)
        await page.reload()
        await expect(chart.locator(".cut")).to_have_count(1)
        await page.locator("#detail .plot").focus()
        await page.keyboard.press("End")
        await expect(part(page, "reading")).to_contain_text("45,000 of 128,000 (reported)")


async def test_a_compaction_is_requested_by_keyboard_and_its_answer_shown(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await page.get_by_role("button", name="Compact: coder").focus()
        await page.keyboard.press("Enter")
        await page.keyboard.type("200000")
        await page.keyboard.press("Tab")
        await page.keyboard.type("long review ahead")
        await page.keyboard.press("Enter")
        requested = await coder.received(kinds.PARTICIPANT_COMPACT)
        assert (requested["from"], requested["to"]) == ("ada", ["coder"])
        assert requested["payload"] == {"reason": "long review ahead", "target_tokens": 200_000}
        done = {"status": "compacted", "freed_tokens": 1}
        await coder.send_envelope(kinds.PARTICIPANT_COMPACT_DONE, done, about=["another-request"])
        await writer.send_envelope(kinds.PARTICIPANT_COMPACT_DONE, done, about=[requested["id"]])
        for member, text in ((coder, "both were sent"), (writer, "by both")):
            await member.send_envelope(kinds.CHAT, {"text": text})
            await log(page).get_by_text(text, exact=True).wait_for()
        await expect(answer(page)).to_have_text("Compacting 98,412 tokens …")
        done = {"status": "compacted", "freed_tokens": 71_366, "freed_messages": 84, "basis": "exact"}
        done |= {"tokens_after": 27_046, "max_tokens": 128_000}
        await coder.send_envelope(kinds.PARTICIPANT_COMPACT_DONE, done, to=["ada"], about=[requested["id"]])
        said = "Freed 71,366 tokens, 84 messages; now ~27,046 of 128,000 (projected; exact after its next call)."
        await expect(answer(page)).to_have_text(said)
        await expect(log(page)).to_contain_text(
            "ada asked coder to compact to at most 200,000 tokens: long review ahead"
        )
        await expect(log(page)).to_contain_text(f"coder: {said}")
        await page.get_by_role("button", name="Pin: coder").click()
        await page.keyboard.type("Never push to main.")
        await page.get_by_role("button", name="Pin", exact=True).click()
        pinned = await coder.received(kinds.PARTICIPANT_PIN)
        assert pinned["payload"] == {"text": "Never push to main."}
        await coder.report(tokens=98_412, **WINDOW, status="refused:too many pins", to=["ada"])
    await expect(answer(page)).to_have_text("Disconnected before it answered.")
    await expect(row(page, "coder")).to_have_attribute("data-tone", "away")
    await expect(page.get_by_role("button", name="Compact: coder")).to_have_count(0)


async def test_actions_without_the_capability_are_hidden_and_refusals_shown(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard("eve")
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await expect(part(page, "amount")).to_have_text("98,412")
        await expect(page.get_by_role("button", name="Compact: coder")).to_have_count(0)
        await page.get_by_label("Message").fill("/compact coder")
        await page.keyboard.press("Enter")
        await expect(page.locator("#composer-answer")).to_have_text(
            "Refused: no capability of 'eve' allows this participant/compact."
        )
        await expect(page.get_by_label("Message")).to_have_value("/compact coder")


async def test_trouble_comes_first_and_never_looks_calm(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer, join(HOSTILE) as tool:
        soon = {**REPORTED, "compact_at_tokens": 115_200, "turns_to_compaction": 1}
        await coder.report(tokens=106_240, **WINDOW, context=soon)
        await tool.report(status="mcp_server_down:clock ended with code 1")
        unknown = {"basis": "unknown", "reason": "no_call_yet"}
        await writer.report(**WINDOW, status="model_unreachable", context=unknown)
        options = page.get_by_role("listbox", name="Participants").get_by_role("option")
        await expect(row(page, "writer")).to_have_attribute("data-tone", "blocking")
        await expect(row(page, "coder")).to_have_attribute("data-tone", "notice")
        await expect(row(page, "coder")).to_contain_text("compacts next")
        await expect(row(page, "writer")).to_have_attribute("aria-posinset", "1")
        await expect(page.locator("#queue .item").first).to_contain_text("writer cannot reach its model")
        await expect(page.locator("#glance")).to_have_text(
            "2 agents · 106,240 of 128,000 tokens in use · 1 unknown · 1 blocked until you act"
        )
        await page.get_by_label("Search participants").fill("cod")
        await expect(options).to_have_count(1)
        await page.get_by_label("Search participants").fill("")
        await page.get_by_label("Show", exact=True).select_option("People and tools")
        await expect(options.filter(has_text="coder")).to_have_count(0)
        await expect(options.filter(has_text="mcp server down")).to_have_count(1)
        await page.get_by_label("Show", exact=True).select_option("All")
        await page.get_by_role("listbox", name="Participants").focus()
        await page.keyboard.press("Home")
        await expect(page.locator("#detail-title")).to_have_text("writer")
        await page.keyboard.press("ArrowDown")
        await expect(page.locator("#detail-title")).not_to_have_text("writer")
        await page.keyboard.press("Escape")
        await expect(page.locator("#detail-title")).to_have_text("The whole space")


async def test_proposals_are_approved_rejected_and_allowed_always(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as files:
        change = {"path": "a.py", "old_string": "x = 1\ny = 2", "new_string": "x = 1\ny = 3"}
        call = {"method": "tools/call", "params": {"name": "edit", "arguments": change}}
        queue = page.locator("#queue .item")
        await coder.send_envelope(kinds.MCP_PROPOSAL, call, to=["writer"])
        await expect(queue).to_contain_text("coder waits for approval of edit on writer")
        await expect(log(page).locator(".diff-line[data-mark='-']")).to_have_text("- y = 2\n")
        await expect(log(page).locator(".diff-line[data-mark='+']")).to_have_text("+ y = 3\n")
        await queue.get_by_role("button", name="Reject…").click()
        await page.keyboard.type("not on Friday")
        await page.keyboard.press("Enter")
        assert (await coder.received(kinds.MCP_REJECT))["payload"] == {"reason": "not on Friday"}
        await expect(queue).to_contain_text("rejected by ada; others may still approve it")
        await expect(log(page)).to_contain_text("rejected by ada: not on Friday")
        proposed = await queue.get_attribute("data-item") or ""
        await coder.send_envelope(kinds.MCP_WITHDRAW, {}, about=[proposed.removeprefix("approval:coder:")])
        await expect(queue).to_have_count(0)
        await coder.send_envelope(kinds.MCP_PROPOSAL, call, to=["writer"])
        await queue.get_by_role("button", name="Always allow this tool…").click()
        meaning = "coder may then call edit on writer without asking, with any arguments"
        await expect(queue.locator(".confirm")).to_contain_text(meaning)
        await queue.locator(".confirm").get_by_role("button", name="Always allow this tool").click()
        granted = await coder.received(kinds.CAPABILITY_GRANT)
        tool = {"method": "tools/call", "params": {"name": "edit"}}
        pattern = {"kind": "mcp/request", "payload": tool, "to": ["writer"], "approve": False}
        assert granted["payload"]["capabilities"] == [pattern]
        requested = await files.received(kinds.MCP_REQUEST)
        digest = digest_of(call, "coder", ["writer"])
        assert (requested["from"], requested["payload"]) == ("ada", {**call, "proposal_digest": digest})
        await expect(log(page)).to_contain_text("approved by ada")
        result = {"result": {"content": [{"type": "text", "text": "edited"}]}}
        await files.send_envelope(kinds.MCP_RESPONSE, result, to=["ada"], about=[requested["id"]])
        await log(page).get_by_text("Arguments and result").click()
        await expect(log(page)).to_contain_text("edited")
        await page.locator("#participants").get_by_text("coder", exact=True).click()
        allowed = page.locator("#detail .allowed")
        await expect(allowed).to_contain_text("may call edit on writer without asking")
        await allowed.get_by_role("button", name="Stop allowing").click()
        assert (await coder.received(kinds.CAPABILITY_REVOKE))["payload"]["capabilities"] == [pattern]
        await expect(allowed).to_be_empty()


async def test_an_approval_in_the_conversation_carries_the_digest(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as files:
        call = {"method": "tools/call", "params": {"name": "edit", "arguments": {"n": 1.0, "ä": "\u202e"}}}
        await coder.send_envelope(kinds.MCP_PROPOSAL, {**call, "further": 1}, to=["writer"])
        await expect(page.locator("#queue .item")).to_contain_text("coder waits for approval of edit on writer")
        await log(page).get_by_role("button", name="Approve edit of coder").click()
        requested = await files.received(kinds.MCP_REQUEST)
        assert requested["payload"] == {**call, "proposal_digest": digest_of(call, "coder", ["writer"])}


async def test_many_proposals_are_one_item_and_notify_when_wanted(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    await page.evaluate(NOTIFICATIONS)
    async with join("coder") as coder, join("writer") as files:
        await page.get_by_role("button", name="Notify").click()
        await expect(page.get_by_role("button", name="Notify")).to_have_attribute("aria-pressed", "true")
        for number in range(5):
            call = {"method": "tools/call", "params": {"name": f"edit-{number}"}}
            await coder.send_envelope(kinds.MCP_PROPOSAL, call, to=["writer"])
        items = page.locator("#queue .item")
        await expect(items).to_have_count(1)
        await expect(items).to_contain_text("5 proposals wait for approval: coder")
        await items.get_by_role("button", name="Show all 5").click()
        await expect(items).to_have_count(6)
        await items.filter(has_text="edit-3").get_by_role("button", name="Approve").click()
        assert (await files.received(kinds.MCP_REQUEST))["payload"]["params"]["name"] == "edit-3"
        await expect(items.first).to_contain_text("4 proposals wait for approval")
        notes = await page.evaluate("window.notes")
        assert "waits for approval" in notes[0]["title"] + notes[0]["body"]


async def test_participants_are_added_and_removed(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder"):
        await page.get_by_text("Add a participant").click()
        await page.get_by_label("Name").fill("grace")
        await page.get_by_label("Role").select_option("agent")
        await page.get_by_role("button", name="Add", exact=True).click()
        await expect(page.locator("#detail .answer")).to_contain_text("grace was added. Its token, shown only once: ")
        await expect(row(page, "grace")).to_contain_text("not connected")
        await expect(row(page, "ada")).to_contain_text("on this page")
        await row(page, "coder").click()
        await page.get_by_text("More", exact=True).click()
        await page.get_by_role("button", name="Remove: coder").click()
        await page.get_by_role("button", name="Remove", exact=True).click()
        await expect(row(page, "coder")).to_have_count(0)
        await expect(log(page)).to_contain_text("ada removed coder")
        await expect(page.locator("#detail-title")).to_have_text("The whole space")


async def test_a_revocation_shows_all_ended_rights(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("eve") as eve, join("writer") as writer:
        await row(page, "eve").click()
        await page.get_by_text("More", exact=True).click()
        for kind in ("capability/*", "space/kick"):
            await page.get_by_role("button", name="Grant: eve").click()
            await page.get_by_label("Kind").fill(kind)
            await page.get_by_role("button", name="Grant", exact=True).click()
            await eve.received(kinds.CAPABILITY_GRANT)
        passed_on = {"recipient": "writer", "capabilities": [{"kind": "space/kick"}]}
        await eve.send_envelope(kinds.CAPABILITY_GRANT, passed_on)
        await writer.received(kinds.CAPABILITY_GRANT)
        for others, said in (
            ("others keep it", "Accepted by the gateway."),
            ("ends too", "Ended too: writer: space/kick"),
        ):
            await page.get_by_role("button", name="Revoke: eve").click()
            await page.get_by_label("Kind").fill("space/*")
            await page.get_by_label("Passed on").select_option(others)
            await page.get_by_role("button", name="Revoke", exact=True).click()
            await expect(answer(page)).to_contain_text(said)
        await expect(log(page)).to_contain_text("no longer held: writer: space/kick from eve")


async def test_an_answer_streams_and_becomes_markdown(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await expect(page.get_by_label("To", exact=True)).to_have_value("coder")
        await page.get_by_label("Message").fill("is it done?")
        await page.keyboard.press("Enter")
        asked = await coder.received(kinds.CHAT)
        assert (asked["to"], asked["payload"]["text"]) == (["coder"], "is it done?")
        await expect(page.get_by_label("Message")).to_have_value("")
        await coder.send_envelope(kinds.REASONING_START, {"message": "is it done?"}, about=[asked["id"]])
        start = await coder.received(kinds.REASONING_START)
        await coder.send_envelope(kinds.STREAM_REQUEST, {"direction": "upload"}, to=["gateway"])
        stream = (await coder.received(kinds.STREAM_OPEN))["payload"]["stream_id"]
        async with join("ada") as other:  # whose stream cannot write into coder's turn
            await other.send_envelope(kinds.STREAM_REQUEST, {"direction": "upload"}, to=["gateway"])
            own = (await other.received(kinds.STREAM_OPEN))["payload"]["stream_id"]
            await other.send_frame(own, {"context": start["id"], "type": "token", "value": "forged "})
        for kind, value in (("thinking", "I look first."), ("token", "It is **nearly**"), ("token", " done")):
            await coder.send_frame(stream, {"context": start["id"], "type": kind, "value": value})
        turn = log(page).locator(".turn")
        await expect(turn.locator(".markdown")).to_have_text("It is nearly done")
        await expect(turn.locator(".reasoning")).to_have_text("I look first.")
        await expect(turn).to_contain_text("working …")
        await expect(page.get_by_role("button", name="Cancel turn: coder")).to_be_visible()
        await coder.send_envelope(kinds.REASONING_CONCLUSION, {"message": "done"}, context=start["id"])
        code = "It is done:\n\n```python\nprint(1)\n```\n\n- one\n- two"
        await coder.send_envelope(kinds.CHAT, {"text": code}, to=["ada"], about=[asked["id"]])
        await expect(turn.locator("pre code")).to_have_text("print(1)")
        await expect(turn.get_by_role("listitem")).to_have_text(["one", "two"])
        await expect(turn.locator(".about")).to_have_text("answers ada: “is it done?”")
        await expect(turn.locator("details")).not_to_have_attribute("open", "")
        await page.reload()  # the gateway keeps what was said
        await expect(turn.locator("pre code")).to_have_text("print(1)")
        await expect(log(page).locator(".chat")).to_contain_text("is it done?")
        await page.get_by_label("Message").focus()
        await page.keyboard.press("ArrowUp")
        await expect(page.get_by_label("Message")).to_have_value("is it done?")


async def test_the_composer_completes_names_and_permitted_commands(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer"):
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await expect(page.get_by_role("button", name="Compact: coder")).to_be_visible()  # permissions are known
        text = page.get_by_label("Message")
        await text.press_sequentially("@wr")
        await expect(page.locator("#composer-options")).to_be_visible()
        await page.keyboard.press("Tab")
        await expect(text).to_have_value("@writer ")
        await text.press_sequentially("tell @cod")
        await page.keyboard.press("Enter")
        await expect(text).to_have_value("@writer tell @coder ")
        await page.keyboard.press("Enter")
        assert set((await coder.received(kinds.CHAT))["to"]) == {"coder", "writer"}
        await text.press_sequentially("/comp")
        await page.keyboard.press("Tab")
        await text.press_sequentially("coder 16000 too long")
        await page.keyboard.press("Enter")
        requested = await coder.received(kinds.PARTICIPANT_COMPACT)
        assert requested["payload"] == {"target_tokens": 16_000, "reason": "too long"}
        done = {"status": "skipped", "skipped": True, "reason": "already_below_target", "tokens_before": 9_000}
        await coder.send_envelope(kinds.PARTICIPANT_COMPACT_DONE, done, to=["ada"], about=[requested["id"]])
        said = page.locator("#composer-answer")
        await expect(said).to_have_text("coder: Skipped, already below the target (9,000).")
        await text.fill("/frobnicate")
        await page.keyboard.press("Enter")
        await expect(said).to_have_text("Unknown command /frobnicate. Type / to see the commands.")


async def test_text_typed_while_a_line_is_sent_becomes_the_next_line(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    held: list[Route] = []
    async with join("coder") as coder:
        await page.route("**/participants/ada/messages*", lambda route: held.append(route))
        text = page.get_by_label("Message")

        async def send(*lines: str) -> None:
            for line in lines:
                await text.press_sequentially(line)
                await page.keyboard.press("Enter")

        await send("first", "second")
        await until(lambda: len(held) == 1)
        await held[0].continue_()
        assert (await coder.received(kinds.CHAT))["payload"]["text"] == "first"
        await until(lambda: len(held) == 2)
        await held[1].continue_()
        assert (await coder.received(kinds.CHAT))["payload"]["text"] == "second"
        await send("third", "fourth")
        await until(lambda: len(held) == 3)
        await held[2].abort()
        await expect(text).to_have_value("third\nfourth")
        await expect(page.locator("#composer-answer")).to_have_attribute("data-problem", "true")


async def test_text_from_participants_is_never_parsed_as_html(
    open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    page = await open_dashboard()
    async with join(HOSTILE) as villain:
        report = {**REPORTED, "level": HOSTILE, "model": HOSTILE, "policy": HOSTILE}
        report["breakdown"] = [{"part": "prefix", "tokens": 7, "basis": "exact"}]
        report["last_compaction"] = {**COMPACTION, "trigger": HOSTILE}
        report["injection"] = {"kind": HOSTILE, "text": HOSTILE}
        report["waiting"] = [{"kind": "approval", "what": HOSTILE, "since": HOSTILE, "who_may_answer": [HOSTILE]}]
        report["suggestions"] = [{"text": HOSTILE, "tokens_saved": 1, "impact": "low"}]
        await villain.report(tokens=7, **WINDOW, status=f"{HOSTILE}:{HOSTILE}", context=report)
        await villain.send_envelope(kinds.REASONING_THOUGHT, {"message": HOSTILE, "reasoning": HOSTILE})
        call = {"method": "tools/call", "params": {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}}
        await villain.send_envelope(kinds.MCP_PROPOSAL, call)
        attacks = f"{HOSTILE}\n\n[run](javascript:document.title='owned') ![x](https://example.org/x.png) # {HOSTILE}"
        table = (
            f"\n\n| {HOSTILE} |\n|---|\n| <script>document.title='owned'</script> |\n\n```{HOSTILE}\n</code>{HOSTILE}"
        )
        await villain.send_envelope(kinds.CHAT, {"text": attacks + table}, to=[HOSTILE])
        for place in ("about", "level", "remark", "savings", "facts", "cuts"):
            await expect(part(page, place).first).to_contain_text("<img src=x onerror=")
        said = log(page).locator(".chat .markdown")
        await expect(said).to_contain_text("run (javascript:document.title='owned')")
        await expect(said).to_contain_text("<script>document.title='owned'</script>")
        await expect(said.get_by_role("link")).to_have_attribute("href", "https://example.org/x.png")
        await expect(log(page).locator(".thought .reasoning")).to_have_text(HOSTILE)
        await expect(page.locator("#queue")).to_contain_text(HOSTILE)
        await page.get_by_role("button", name=f"Compact: {HOSTILE}").click()
        await page.get_by_role("button", name="Compact", exact=True).first.click()
        requested = await villain.received(kinds.PARTICIPANT_COMPACT)
        done = {"status": "skipped", "skipped": True, "reason": HOSTILE}
        await villain.send_envelope(kinds.PARTICIPANT_COMPACT_DONE, done, to=["ada"], about=[requested["id"]])
        await expect(answer(page)).to_have_text(f"Skipped, {HOSTILE}.")
        await expect(page.locator("main :is(img, script, iframe, object)")).to_have_count(0)
        assert await page.title() == "(1) Review room · mew"
    assert [address for address in tab.addresses if "example.org" in address] == []
    assert tab.complaints == []


async def test_markdown_becomes_nodes_and_links_are_safe(sign_in_page: Page) -> None:
    found = await sign_in_page.evaluate(
        """async () => {
            const { render, safeAddress } = await import("/dashboard/markdown.js");
            const addresses = ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "vbscript:x", "/path",
                " javascript:x", "java\\nscript:x", "file:///etc/passwd", "blob:x"];
            const tags = (text) => [...render(text).children].map((node) => node.className || node.localName);
            const inline = "a **b** _c_ `d` ~~e~~ max_tokens_basis 2 * 3 https://example.org/x. [l](https://e.org)";
            const links = render("[a](javascript:x) ![p](https://e.org/p.png) <https://e.org> name.py bob@e.org");
            return {
                safe: addresses.map(safeAddress),
                web: safeAddress("https://example.org/a?b#c"),
                tags: tags("# h\\n\\ntext\\n- a\\n  - b\\n2. c\\n\\n> q\\n\\n---\\n" +
                    "```js\\ncode\\n```\\n|a|b|\\n|-|-|\\n|1|2|"),
                spans: [...render(inline).querySelectorAll("p *")].map((node) => node.localName),
                links: [links.textContent, [...links.querySelectorAll("a")].map((node) => node.href)],
                open: render("```py\\nnot closed").querySelector("pre").textContent,
                html: render("<b onclick=x>bold</b>\\n\\n<script>x</script>").textContent,
                kept: [">".repeat(50) + " deep", "[//]: # (comment)", "- ".repeat(40) + "deep"]
                    .map((text) => render(text).textContent),
            };
        }"""
    )
    assert found["safe"] == [None] * 9
    assert found["web"] == "https://example.org/a?b#c"
    assert found["tags"] == ["heading heading-1", "p", "ul", "ol", "blockquote", "hr", "code", "table"]
    assert found["spans"] == ["strong", "em", "code", "s", "a", "a"]
    assert found["links"] == [
        "a (javascript:x) p https://e.org name.py bob@e.org",
        ["https://e.org/p.png", "https://e.org/"],
    ]
    assert found["open"] == "not closed"
    assert found["html"] == "<b onclick=x>bold</b><script>x</script>"
    assert found["kept"] == [">" * 50 + " deep", "[//]: # (comment)", "- " * 40 + "deep"]


async def test_no_envelope_breaks_the_page(open_dashboard: OpenDashboard, join: Join, tab: Tab) -> None:
    """Members may send any payload for most kinds: each is applied and drawn without an error."""
    page = await open_dashboard()
    assert await page.evaluate(ODD_ENVELOPES) > 10_000
    async with join("coder") as coder:
        for odd in ({"params": 5, "method": {}}, {"method": "tools/call", "params": {"name": 3, "arguments": [1]}}):
            for kind in (
                kinds.REASONING_START,
                kinds.REASONING_THOUGHT,
                kinds.CAPABILITY_GRANT_ACK,
                kinds.CHAT_ACKNOWLEDGE,
            ):
                await coder.send_envelope(kind, odd, about=["x"])
        await coder.send_envelope(kinds.CHAT, {"text": "still here"})
        await log(page).get_by_text("still here").wait_for()
    assert tab.complaints == []


async def test_the_token_leaves_the_url_and_survives_a_reload(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await coder.send_envelope(kinds.CHAT, {"text": "see https://example.org/picture.png"})
        await log(page).get_by_text("picture.png").wait_for()
    assert page.url == f"{gateway.url}/dashboard"
    await page.reload()
    await page.get_by_text("live", exact=True).wait_for()
    await page.get_by_role("button", name="Sign out").click()
    left = await page.evaluate("document.body.textContent")
    assert [one for one in ("coder", "98,412", "picture", "Review room") if one in left] == []
    assert await page.locator("#me-name").text_content() == ""
    await page.reload()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert not [address for address in tab.addresses if gateway.token_of("ada") in address.partition("#")[0]]
    assert [address for address in tab.addresses if not address.startswith(f"{gateway.url}/")] == []
    assert len(tab.addresses) > 5
    assert tab.complaints == []


async def test_without_a_token_the_form_explains_where_it_is(gateway: RunningGateway, tab: Tab) -> None:
    page = tab.page
    await page.goto(f"{gateway.url}/dashboard")
    await expect(page.get_by_text(".mew/tokens/", exact=True)).to_be_visible()
    await page.get_by_label("Space", exact=True).fill("review")
    await page.get_by_label("Participant", exact=True).fill("ada")
    await page.get_by_label("Token").fill("wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text(
        "Sign-in failed: invalid token for this space; expected the token of a participant or an observer."
    )
    await expect(page.get_by_label("Space", exact=True)).to_have_value("review")
    await page.get_by_label("Token").fill(gateway.token_of("ada"))
    await page.keyboard.press("Enter")
    await page.get_by_text("live", exact=True).wait_for()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Review room")


async def test_a_restarted_gateway_is_reported_and_followed(config: SpaceConfig, tab: Tab) -> None:
    page = tab.page
    async with serve_gateway(config) as first:
        await page.goto(
            f"{first.url}/dashboard#token={first.token_of('ada')}&space=review&participant=ada",
        )
        await page.get_by_text("live", exact=True).wait_for()
    await expect(page.locator("#connection-text")).to_contain_text("connection lost")
    async with serve_gateway(config, port=first.port, tokens=first.tokens):
        await page.get_by_text("live", exact=True).wait_for()
        await expect(log(page)).to_contain_text("no longer available")
        await expect(log(page)).to_contain_text("Reconnected after")
        await page.get_by_label("Message").fill("after the restart")
        await page.keyboard.press("Enter")
        await expect(log(page).locator(".chat")).to_contain_text("after the restart")


async def test_after_a_cut_missed_events_arrive_once(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    """The first response is a stream that a proxy cut off; the second comes from the gateway."""
    async with join("coder") as coder:
        place = str(gateway.service.log.position)
        await gateway.service.attention.refresh_views()
        view = gateway.service.attention.views.since(None, gateway.service.now()).model_dump_json(exclude_unset=True)
        await coder.send_envelope(kinds.CHAT, {"text": "said while nobody listened"})
        await coder.received(kinds.CHAT)
        requested: list[str] = []

        async def cut_first(route: Route) -> None:
            requested.append(route.request.url)
            if len(requested) > 1:
                await route.continue_()
                return
            body = f"id: {place}\nevent: view\ndata: {view}\n\n: keep-alive\n\nevent: envelope\ndata: {{"
            await route.fulfill(status=200, content_type="text/event-stream", body=body)

        await tab.page.route(re.compile(r"/spaces/review/events"), cut_first)
        page = await open_dashboard()
        await expect(page.get_by_role("log").locator(".chat .markdown")).to_have_text(["said while nobody listened"])
        assert requested[1].endswith(f"/spaces/review/events?since={place}&frames=1&view=1")


async def test_events_parse_the_same_however_they_are_split(sign_in_page: Page) -> None:
    events = await sign_in_page.evaluate(
        """async () => {
            const { EventParser } = await import("/dashboard/events.js");
            const text = ": hello\\r\\nid: e-1\\r\\nevent: board\\r\\n" +
                "data: {\\"a\\":1,\\r\\ndata: \\"b\\":2}\\r\\n\\r\\n" +
                "data:x\\n\\nid: e-2\\nevent: none\\n\\n";
            return Array.from({ length: 9 }, (_, index) => {
                const parser = new EventParser();
                const size = index + 1;
                const found = [];
                for (let at = 0; at < text.length; at += size) found.push(...parser.feed(text.slice(at, at + size)));
                return JSON.stringify(found);
            });
        }"""
    )
    expected = '[{"id":"e-1","name":"board","data":"{\\"a\\":1,\\n\\"b\\":2}"},{"name":"message","data":"x"}]'
    assert events == [expected] * 9


async def test_the_page_is_accessible_in_both_colour_schemes(
    open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    await tab.page.emulate_media(reduced_motion="reduce")
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        near = {**REPORTED, "level": "near_limit", "severity": 2, "compact_at_tokens": 115_200}
        parts = [{"part": name, "tokens": 12_000, "basis": "exact"} for name in get_args(PartName)]
        await coder.report(tokens=118_000, **WINDOW, status="near_limit", context={**near, "breakdown": parts})
        await writer.report(**WINDOW, status="compacting", context={"basis": "unknown", "reason": "no_call_yet"})
        call = {"method": "tools/call", "params": {"name": "edit", "arguments": {"path": "a.py"}}}
        await coder.send_envelope(kinds.MCP_PROPOSAL, call, to=["writer"])
        await writer.send_envelope(kinds.CHAT, {"text": "hello `code` [a link](https://example.org)"}, to=["coder"])
        await log(page).get_by_text("hello").wait_for()
        await expect(page.locator("#queue")).to_contain_text("coder waits for approval")
        await expect(row(page, "writer")).to_be_visible()
        assert await inaccessible(page) == []
        await row(page, "coder").click()
        await page.get_by_text("All figures").click()
        assert await inaccessible(page) == []
        assert await page.evaluate(FILLS) == []
        await page.emulate_media(color_scheme="dark")
        assert await page.evaluate(FILLS) == []
        await page.emulate_media(color_scheme="light")
        await page.get_by_role("button", name="Theme: auto").click()
        await expect(page.locator("html")).to_have_attribute("data-theme", "light")
        await page.reload()
        await page.get_by_role("button", name="Theme: light").click()
        await expect(page.locator("body")).to_have_css("background-color", "rgb(15, 20, 19)")
        await page.get_by_role("button", name="Keyboard help").click()
        await expect(page.get_by_role("dialog")).to_contain_text("search participants")


async def test_on_a_phone_one_pane_is_in_view_and_nothing_overflows(
    open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    await tab.page.set_viewport_size({"width": 360, "height": 740})
    page = await open_dashboard()
    async with join("coder") as coder:
        long = "a_name_without_any_place_to_break_it" * 6
        await coder.report(tokens=98_412, **WINDOW, status=long, context={**REPORTED, "model": long, "level": long})
        call = {"method": "tools/call", "params": {"name": long, "arguments": {long: long}}}
        await coder.send_envelope(kinds.MCP_PROPOSAL, call)
        await coder.send_envelope(kinds.CHAT, {"text": f"{long}\n\n| {long} | {long} |\n|---|---|\n\n```\n{long}\n```"})
        await log(page).locator("table").wait_for()
        for pane, shown in (
            ("Conversation", log(page)),
            ("Participants", row(page, "coder")),
            ("Details", part(page, "amount")),
        ):
            await page.get_by_role("navigation").get_by_role("button", name=pane).click()
            await expect(shown).to_be_visible()
            await expect(page.locator("#space > .pane:visible")).to_have_count(1)
            widths = await page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert widths[0] == widths[1] == 360
        await page.get_by_role("navigation").get_by_role("button", name="Participants").click()
        await row(page, "coder").click()
        await expect(part(page, "amount")).to_have_text("98,412")


CROWD = parse_space(
    'space: {id: review}\nparticipants:\n  ada: {capabilities: [{kind: "**"}]}\n'
    + "".join(f"  agent-{number:03}: {{capabilities: [{{kind: participant/status}}]}}\n" for number in range(300))
)


@pytest.mark.parametrize("config", [CROWD])
async def test_of_many_participants_only_rows_in_view_exist(
    gateway: RunningGateway, open_dashboard: OpenDashboard
) -> None:
    for number in range(300):
        status = {"messages_in_context": 3, "tokens": 1_000 + 400 * number, **WINDOW, "context": REPORTED}
        draft = read_draft({"kind": kinds.PARTICIPANT_STATUS, "payload": status})
        sent = gateway.service.receive(None, ParticipantId(f"agent-{number:03}"), draft)
        assert sent.receipt.refused is None
    page = await open_dashboard()
    listbox = page.get_by_role("listbox", name="Participants")
    rows = listbox.get_by_role("option")
    first = listbox.locator("[aria-posinset='1'][aria-setsize='301']")
    await expect(first).to_be_visible()
    assert await rows.count() < 40
    await listbox.focus()
    await page.keyboard.press("End")
    await expect(listbox.locator("[aria-selected=true]")).to_be_in_viewport()
    await expect(listbox.locator("[aria-selected=true]")).to_have_attribute("aria-posinset", "301")
    await expect(first).to_have_count(0)
    await page.keyboard.press("Home")
    await expect(first).to_be_in_viewport()
    await expect(page.locator("#detail-title")).to_have_text(re.compile("^agent-2"))
    assert await rows.count() < 40
    stops = "[...document.querySelectorAll('main :is(button, input, select, textarea, summary, a, [tabindex=\"0\"])')]"
    shown = f"{stops}.filter((one) => one.tabIndex >= 0 && one.checkVisibility()).length"
    assert await page.evaluate(shown) < 30


async def test_reduced_motion_stops_animations(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, status="compacting", context=REPORTED)
        fill = page.locator("#detail .gauge.large .gauge-fill")
        await expect(fill).to_have_css("animation-name", "breathe")
        await page.emulate_media(reduced_motion="reduce")
        await expect(fill).to_have_css("animation-name", "none")
