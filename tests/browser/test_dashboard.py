"""The dashboard in Chromium, served by a gateway, with members connected to the space."""

import re
from contextlib import AsyncExitStack
from typing import Any, get_args

import pytest
from mew_protocol import kinds
from mew_protocol.context_report import Basis, LimitBasis, PartName, UnknownReason
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from playwright.async_api import Locator, Page, Route, expect

from tests.browser.conftest import HOSTILE, Join, OpenDashboard, Tab

WINDOW: dict[str, Any] = {"max_tokens": 128_000}

REPORTED: dict[str, Any] = {"basis": "reported", "level": "healthy", "severity": 0, "revision": 0}

COMPACTION = {
    "at": "2026-01-01T10:00:00Z",
    "trigger": "threshold",
    "freed_tokens": 23_020,
    "freed_gross_tokens": 24_000,
    "summary_tokens": 980,
    "freed_messages": 40,
    "basis": "exact",
}

CROWD = parse_space(
    'space: {id: review}\nparticipants:\n  ada: {capabilities: [{kind: "*"}]}\n'
    + "".join(f"  agent-{number}: {{capabilities: [{{kind: participant/status}}]}}\n" for number in range(10))
)


def card(page: Page, participant: str) -> Locator:
    """The card of a participant."""
    return page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=participant, exact=True))


def slot(within: Locator, name: str) -> Locator:
    """A part of a card."""
    return within.locator(f"[data-slot={name}]")


async def board_of(page: Page, gateway: RunningGateway) -> dict[str, Any]:
    """The gateway's board, by participant."""
    answer = await page.request.get(
        f"{gateway.url}/spaces/review/context", headers={"Authorization": f"Bearer {gateway.token_of('ada')}"}
    )
    return {line["id"]: line for line in (await answer.json())["participants"]}


async def assert_same_integers(page: Page, gateway: RunningGateway, participant: str) -> None:
    """A card, its gauge and the gateway's board show the same figures."""
    status = (await board_of(page, gateway))[participant]["status"]
    shown = card(page, participant)
    await expect(slot(shown, "tokens")).to_have_text(f"{status['tokens']:,}")
    await expect(slot(shown, "window")).to_have_text(f"of {status['max_tokens']:,}")
    gauge = shown.get_by_role("meter")
    await expect(gauge).to_have_attribute("aria-valuenow", str(status["tokens"]))
    await expect(gauge).to_have_attribute("aria-valuemax", str(status["max_tokens"]))


async def test_cards_show_the_same_integers_as_the_board(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        page = await open_dashboard()
        await assert_same_integers(page, gateway, "coder")
        await coder.report(tokens=104_119, **WINDOW, context={**REPORTED, "turns_to_compaction": 5})
        await expect(slot(card(page, "coder"), "tokens")).to_have_text("104,119")
        await assert_same_integers(page, gateway, "coder")
        await expect(slot(card(page, "coder"), "known")).to_have_text(
            re.compile(r"^reported \d+ s ago · compacts in ~5 turns$")
        )
        await expect(slot(card(page, "coder"), "level")).to_have_text("healthy · 81%")
    assert tab.complaints == []


async def test_a_partial_status_for_one_participant_changes_no_card(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=5_000, **WINDOW, context=REPORTED)
        await coder.report(to=["ada"], tokens=7_000)
        await coder.send_envelope(kinds.CHAT, {"text": "that was all"})
        await page.get_by_role("log").get_by_text("that was all").wait_for()
        await expect(slot(card(page, "coder"), "tokens")).to_have_text("5,000")
        await assert_same_integers(page, gateway, "coder")


async def test_an_unknown_amount_shows_the_reason_and_the_last_report(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        last = {"tokens": 98_412, "measured_at": "2026-01-01T10:00:00Z", "call_id": "call-1"}
        unknown = {"basis": "unknown", "reason": "usage_unavailable", "last_reported": last}
        await coder.report(**WINDOW, context={**unknown, "max_tokens_basis": "assumed"})
        shown = card(page, "coder")
        await expect(slot(shown, "tokens")).to_have_text("Unknown")
        await expect(slot(shown, "window")).to_have_text("· window 128,000 (assumed)")
        await expect(slot(shown, "known")).to_contain_text("unknown: the model server reported no usage")
        await expect(slot(shown, "known")).to_contain_text(re.compile(r"last reported 98,412, \d+ d ago"))
        await expect(shown.get_by_role("meter")).to_have_count(0)
        await expect(shown).to_have_attribute("data-basis", "unknown")
        assert await slot(shown, "fill").evaluate("fill => fill.getBoundingClientRect().width") == 0


async def test_every_value_of_the_context_report_has_words(open_dashboard: OpenDashboard) -> None:
    page = await open_dashboard()
    names = {
        "reasons": get_args(UnknownReason),
        "bases": [basis for basis in get_args(Basis) if basis != "unknown"],
        "windows": get_args(LimitBasis),
        "parts": get_args(PartName),
        "skipped": [
            "no_history",
            "not_supported",
            "compaction_in_progress",
            "already_below_target",
            "timeout",
            "failed",
        ],
    }
    shown = await page.evaluate(
        """async (names) => {
            const text = await import("/dashboard/text.js");
            const board = await import("/dashboard/board.js");
            const read = (context, more) => board.readStatus({ messages_in_context: 1, context, ...more });
            const age = () => "1 h";
            return {
                reasons: names.reasons.map((reason) => text.known(read({ basis: "unknown", reason }), "1 s", age)),
                bases: names.bases.map((basis) => text.known(read({ basis }, { tokens: 5 }), "1 s", age)),
                windows: names.windows.map((basis) => {
                    const status = read({ basis: "reported", max_tokens_basis: basis }, { tokens: 5, max_tokens: 9 });
                    return Object.fromEntries(text.figures(status, age)).window;
                }),
                parts: names.parts.map((part) => text.partName(part)),
                skipped: names.skipped.map((reason) => text.compactAnswer({ skipped: true, reason })),
            };
        }""",
        names,
    )
    for group, values in names.items():
        texts = shown[group]
        assert len({*texts}) == len(values), group  # no two of them share a text, such as "nothing reported"
        assert all(text and "_" not in text and "nothing reported" not in text for text in texts), texts


async def test_a_projection_is_hatched_and_marked(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        solid = slot(card(page, "coder"), "fill")
        await expect(solid).to_have_css("background-image", "none")
        projected = {**REPORTED, "basis": "projected", "stale_messages": 2}
        await coder.report(tokens=27_046, **WINDOW, context=projected)
        shown = card(page, "coder")
        await expect(slot(shown, "tokens")).to_have_text("~27,046")
        await expect(slot(shown, "known")).to_have_text("projected")
        await expect(slot(shown, "remark")).to_have_text("2 items added since then")
        await expect(slot(shown, "fill")).to_have_css("background-image", re.compile("repeating-linear-gradient"))


async def test_a_figure_without_a_basis_is_marked_as_an_estimate(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=512, **WINDOW)
        await expect(slot(card(page, "coder"), "tokens")).to_have_text("~512")
        await expect(slot(card(page, "coder"), "known")).to_contain_text("unlabelled")


async def test_a_card_shows_limit_level_parts_and_last_compaction(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        parts = [
            {"part": "prefix", "tokens": 6_000, "basis": "exact"},
            {"part": "tool_results", "tokens": 112_000, "basis": "projected"},
        ]
        near = {**REPORTED, "level": "near_limit", "severity": 2, "compact_at_tokens": 115_200, "breakdown": parts}
        await coder.report(
            tokens=118_000, **WINDOW, status="near_limit", context={**near, "last_compaction": COMPACTION}
        )
        shown = card(page, "coder")
        await expect(slot(shown, "level")).to_have_text("near limit · 92%")
        await expect(slot(shown, "known")).to_contain_text("compacts at 115,200")
        await expect(slot(shown, "last")).to_have_text(
            re.compile(r"^Last compaction freed 23,020 tokens \d+ d ago \(threshold\)$")
        )
        rows = slot(shown, "legend").get_by_role("listitem")
        await expect(rows).to_have_text(["system prompt and tools 6,000", "tool results ~112,000"])
        place = await slot(shown, "mark").evaluate(
            "mark => (mark.getBoundingClientRect().left + 1 - mark.parentElement.getBoundingClientRect().left)"
            " / mark.parentElement.getBoundingClientRect().width"
        )
        assert place == pytest.approx(0.9, abs=0.002)
        await expect(page.locator("#glance")).to_have_text("1 window: 1 near the limit")


async def test_the_sparkline_has_a_notch_for_each_compaction(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        for tokens in (40_000, 90_000, 116_000):
            await coder.report(tokens=tokens, **WINDOW, context=REPORTED)
        await coder.report(tokens=45_000, **WINDOW, context={**REPORTED, "last_compaction": COMPACTION})
        sparkline = card(page, "coder").get_by_role("img", name="Since you opened this page")
        await expect(sparkline).to_have_attribute(
            "aria-label", "Since you opened this page: 4 values, from 40,000 to 45,000 tokens, 1 compaction"
        )
        await expect(sparkline.locator(".sparkline-notch")).to_have_count(1)
        await expect(page.get_by_role("log")).to_contain_text("coder compacted: freed 23,020 tokens (threshold)")


async def test_an_open_card_shows_what_the_last_compaction_replaced(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=116_000, **WINDOW, context=REPORTED)
        await coder.send_envelope(kinds.CHAT, {"text": "this was said before"})
        await coder.report(tokens=45_000, **WINDOW, context={**REPORTED, "last_compaction": COMPACTION})
        shown = card(page, "coder")
        await shown.get_by_text("Activity", exact=True).click()
        replaced = "40 messages replaced by a summary of ~980 tokens"
        await expect(slot(shown, "replaced")).to_have_text(f"Last compaction: {replaced}.")
        activity = slot(shown, "activity").get_by_role("listitem")
        await expect(activity).to_have_count(2)
        await expect(activity.first).to_contain_text("this was said before")
        await expect(activity.last).to_contain_text(f"compacted: freed 23,020 tokens (threshold); {replaced}")
        dropped = {**COMPACTION, "at": "2026-01-01T11:00:00Z", "summary_tokens": 0, "freed_messages": 1}
        await coder.report(tokens=44_000, **WINDOW, context={**REPORTED, "last_compaction": dropped})
        await expect(slot(shown, "replaced")).to_have_text("Last compaction: 1 message removed without a summary.")
        cleared = {**dropped, "at": "2026-01-01T12:00:00Z", "freed_messages": 0}
        await coder.report(tokens=43_000, **WINDOW, context={**REPORTED, "last_compaction": cleared})
        await expect(slot(shown, "replaced")).to_be_hidden()


async def test_the_compact_button_sends_a_request_and_shows_the_answer(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await page.get_by_role("button", name="Compact coder").click()
        requested = await coder.received(kinds.PARTICIPANT_COMPACT)
        assert (requested["from"], requested["to"]) == ("ada", ["coder"])
        assert requested["payload"] == {"reason": "requested on the dashboard"}
        answer = slot(card(page, "coder"), "answer")
        await expect(answer).to_have_text("Compacting 98,412 tokens …")
        await expect(page.get_by_role("button", name="Compacting coder")).to_be_disabled()
        done = {"status": "compacted", "freed_tokens": 71_366, "freed_messages": 84, "basis": "exact"}
        done |= {"tokens_after": 27_046, "max_tokens": 128_000}
        await coder.send_envelope(kinds.PARTICIPANT_COMPACT_DONE, done, to=["ada"], about=[requested["id"]])
        said = "Freed 71,366 tokens in 84 messages; now ~27,046 of 128,000 (projected until its next call)."
        await expect(answer).to_have_text(said)
        await expect(page.locator("#announcer")).to_have_text(f"coder: {said}")
        await expect(page.get_by_role("button", name="Compact coder")).to_be_enabled()


async def test_answers_to_other_requests_are_ignored(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await page.get_by_role("button", name="Compact coder").click()
        requested = await coder.received(kinds.PARTICIPANT_COMPACT)
        done = {"status": "compacted", "freed_tokens": 1}
        await coder.send_envelope(kinds.PARTICIPANT_COMPACT_DONE, done, about=["another-request"])
        await writer.send_envelope(kinds.PARTICIPANT_COMPACT_DONE, done, about=[requested["id"]])
        await coder.send_envelope(kinds.CHAT, {"text": "both were sent"})
        await writer.send_envelope(kinds.CHAT, {"text": "by both"})
        await page.get_by_role("log").get_by_text("both were sent").wait_for()
        await page.get_by_text("by both").wait_for()
        await expect(slot(card(page, "coder"), "answer")).to_have_text("Compacting 98,412 tokens …")


async def test_compaction_to_a_target_works_by_keyboard(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=27_046, **WINDOW, context=REPORTED)
        await page.get_by_role("button", name="Compact coder").focus()
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.type("200000")
        await page.keyboard.press("Enter")
        requested = await coder.received(kinds.PARTICIPANT_COMPACT)
        assert requested["payload"]["target_tokens"] == 200_000
        done = {"status": "skipped", "skipped": True, "reason": "already_below_target", "tokens_before": 27_046}
        await coder.send_envelope(kinds.PARTICIPANT_COMPACT_DONE, done, to=["ada"], about=[requested["id"]])
        answer = slot(card(page, "coder"), "answer")
        await expect(answer).to_have_text("Skipped: already below 200,000 (now 27,046).")


async def test_a_request_without_the_capability_shows_the_refusal(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard("eve")
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await page.get_by_role("button", name="Compact coder").click()
        await expect(slot(card(page, "coder"), "answer")).to_have_text(
            "Refused: no capability of 'eve' allows this participant/compact."
        )


async def test_a_participant_that_leaves_keeps_its_card_and_ends_open_requests(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await page.get_by_role("button", name="Compact coder").click()
        await coder.received(kinds.PARTICIPANT_COMPACT)
    shown = card(page, "coder")
    await expect(slot(shown, "answer")).to_have_text("Disconnected before it answered.")
    await expect(slot(shown, "remark")).to_contain_text("disconnected, last status")
    await expect(slot(shown, "word")).to_have_text("disconnected")
    await expect(page.get_by_role("button", name="Compact coder")).to_be_disabled()


@pytest.mark.parametrize("config", [CROWD])
async def test_with_many_cards_only_open_ones_show_charts(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with AsyncExitStack() as members:
        for number in range(10):
            member = await members.enter_async_context(join(f"agent-{number}"))
            await member.report(tokens=98_412, **WINDOW, context={**REPORTED, "last_compaction": COMPACTION})
            if number == 8:
                await expect(slot(card(page, "agent-8"), "last")).to_be_visible()
        shown, other = card(page, "agent-9"), card(page, "agent-0")
        await expect(slot(shown, "tokens")).to_be_visible()
        await expect(slot(shown, "last")).to_be_hidden()
        await shown.get_by_text("Details", exact=True).click()
        await expect(slot(shown, "last")).to_be_visible()
        await expect(slot(other, "last")).to_be_hidden()


async def test_participants_without_a_context_share_one_line(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("ada"), join("eve"):
        await expect(page.locator("#others")).to_have_text(re.compile(r"^Connected: ada \(you\), eve\s*Disconnected: "))
        await expect(page.locator("#cards > li")).to_have_count(0)
    await expect(page.locator("#others")).not_to_contain_text("Connected:")


async def test_a_tools_problem_follows_its_name(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as bridge:
        await bridge.report(status="mcp_server_down:clock ended with code 1")
        await expect(page.locator("#others")).to_have_text(
            re.compile(r"^Connected: coder \(mcp server down: clock ended with code 1\)")
        )
        await bridge.report(status="active")
        await expect(page.locator("#others")).to_have_text(re.compile(r"^Connected: coder\s*Disconnected"))


async def test_a_card_shows_spend_countdown_and_suggestions(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        saved = [
            {"text": text, "tokens_saved": tokens, "impact": "low"}
            for text, tokens in (("one", 10), ("drop tool outputs.", 4_200), ("two", 20), ("three", 30))
        ]
        counting = {"kind": "countdown", "remaining": 3, "text": "soon"}
        more = {"spent_tokens": 61_000, "budget_tokens": 100_000, "injection": counting, "suggestions": saved}
        await coder.report(tokens=98_412, **WINDOW, context={**REPORTED, **more})
        shown = card(page, "coder")
        await expect(slot(shown, "remark")).to_have_text("spent 61,000 of 100,000 tokens · active: countdown (3 left)")
        await expect(slot(shown, "savings").get_by_role("listitem")).to_have_text(
            [
                "drop tool outputs (saves ~4,200 tokens, low impact)",
                "three (saves ~30 tokens, low impact)",
                "two (saves ~20 tokens, low impact)",
            ]
        )
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await expect(slot(shown, "savings")).to_be_hidden()


async def test_a_card_shows_what_waits_for_approval_and_stopped_loops(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        wait = {
            "kind": "approval",
            "what": "approval of write on files",
            "since": "2026-01-01T00:00:00Z",
            "proposal": "p1",
        }
        more = {"arguments": {"path": "a.txt"}, "who_may_answer": ["ada", "helper"]}
        context = {**REPORTED, "waiting": [{**wait, **more}]}
        await coder.report(tokens=98_412, **WINDOW, status="waiting_for_approval", context=context)
        shown = card(page, "coder")
        await expect(slot(shown, "word")).to_have_text("waiting for approval")
        await expect(slot(shown, "remark")).to_have_text(
            re.compile(r'^approval of write on files \{"path":"a.txt"\}, asked .+ ago \(ada, helper can decide\)$')
        )
        await coder.report(tokens=98_412, **WINDOW, status="paused: loop with two", context=REPORTED)
        await expect(slot(shown, "remark")).to_have_text("loop with two")


async def test_an_open_card_shows_messages_and_thoughts(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        for member in (coder, writer):
            await member.report(tokens=98_412, **WINDOW, context=REPORTED)
        await expect(card(page, "writer")).to_be_visible()
        await writer.send_envelope(kinds.CHAT, {"text": "is it done?"}, to=["coder"])
        await page.get_by_role("log").get_by_text("is it done?").wait_for()
        await coder.send_envelope(
            kinds.REASONING_THOUGHT, {"message": "I look first.", "reasoning": "", "action": "act"}
        )
        await coder.send_envelope(kinds.CHAT, {"text": "it is"}, to=["writer"])
        await page.get_by_role("log").get_by_text("it is", exact=True).wait_for()
        summary = card(page, "coder").get_by_text("Activity", exact=True)
        await summary.focus()
        await page.keyboard.press("Enter")
        activity = page.get_by_role("list", name="Messages and thoughts of coder")
        await expect(activity.locator(".said")).to_have_text(["is it done?", "I look first.", "it is"])
        await expect(activity.locator(".names")).to_have_text(["writer → coder", "coder thinks", "coder → writer"])
        await expect(slot(card(page, "writer"), "activity").locator(".said")).to_have_text(["is it done?", "it is"])


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
        report["suggestions"] = [{"text": HOSTILE, "tokens_saved": 1, "impact": HOSTILE}]
        await villain.report(tokens=7, **WINDOW, status=f"{HOSTILE}:{HOSTILE}", context=report)
        await villain.send_envelope(kinds.REASONING_THOUGHT, {"message": HOSTILE, "reasoning": HOSTILE})
        await villain.send_envelope(kinds.CHAT, {"text": HOSTILE}, to=[HOSTILE])
        shown = card(page, HOSTILE)
        for place in ("about", "word", "level", "remark", "savings", "last", "figures"):
            await expect(slot(shown, place)).to_contain_text("<img src=x onerror=")
        await shown.get_by_role("button", name="Compact").click()
        requested = await villain.received(kinds.PARTICIPANT_COMPACT)
        done = {"status": "skipped", "skipped": True, "reason": HOSTILE}
        await villain.send_envelope(kinds.PARTICIPANT_COMPACT_DONE, done, to=["ada"], about=[requested["id"]])
        await expect(slot(shown, "answer")).to_have_text(f"Skipped: {HOSTILE}.")
        await expect(page.get_by_role("log").locator(".said")).to_have_text(HOSTILE)
        await expect(slot(shown, "activity").locator(".said")).to_have_text([HOSTILE, HOSTILE])
        await expect(page.locator("main img")).to_have_count(0)
        assert await page.title() == "Review room · mew"
    assert tab.complaints == []


async def test_the_conversation_shows_sender_recipients_and_newest_messages(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        for number in range(205):
            await coder.send_envelope(
                kinds.CHAT, {"text": f"line {number}"}, to=["ada", "writer"] if number % 2 else []
            )
        lines = page.get_by_role("log").locator("li")
        await expect(lines.last).to_contain_text("line 204")
        await expect(lines).to_have_count(200)
        await expect(lines.last.locator(".names")).to_have_text("coder → everyone")
        await expect(lines.nth(198).locator(".names")).to_have_text("coder → ada, writer")
        await expect(lines.last).to_be_in_viewport()


async def test_the_token_leaves_the_url_and_survives_a_reload(
    gateway: RunningGateway, open_dashboard: OpenDashboard, tab: Tab
) -> None:
    page = await open_dashboard()
    assert page.url == f"{gateway.url}/dashboard"
    await page.reload()
    await page.get_by_text("live", exact=True).wait_for()
    await page.get_by_role("button", name="Sign out").click()
    await page.reload()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert not [address for address in tab.addresses if gateway.token_of("ada") in address.partition("#")[0]]


async def test_the_page_requests_nothing_from_other_hosts(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await coder.send_envelope(kinds.CHAT, {"text": "see https://example.org/picture.png"})
        await page.get_by_role("log").get_by_text("picture.png").wait_for()
    assert len(tab.addresses) > 5
    assert [address for address in tab.addresses if not address.startswith(f"{gateway.url}/")] == []
    assert tab.complaints == []


async def test_without_a_token_the_form_explains_where_it_is(gateway: RunningGateway, tab: Tab) -> None:
    page = tab.page
    await page.goto(f"{gateway.url}/dashboard")
    await expect(page.get_by_text(".mew/tokens/", exact=True)).to_be_visible()
    await page.get_by_label("Space", exact=True).fill("review")
    await page.get_by_label("Participant").fill("ada")
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


async def test_a_lost_connection_is_reported_and_restored(config: SpaceConfig, tab: Tab) -> None:
    page = tab.page
    async with serve_gateway(config) as first:
        await page.goto(
            f"{first.url}/dashboard#token={first.token_of('ada')}&space=review&participant=ada",
        )
        await page.get_by_text("live", exact=True).wait_for()
    await expect(page.locator("#connection-text")).to_contain_text("connection lost")
    async with serve_gateway(config, port=first.port, tokens=first.tokens):
        await page.get_by_text("live", exact=True).wait_for()
        await expect(page.get_by_role("log")).to_contain_text("no longer available")


async def test_after_a_cut_missed_events_arrive_once(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    """The first response is a stream that a proxy cut off; the second comes from the gateway."""
    async with join("coder") as coder:
        place = str(gateway.service.log.position)
        board = gateway.board().model_dump_json(exclude_unset=True)
        await coder.send_envelope(kinds.CHAT, {"text": "said while nobody listened"})
        await coder.received(kinds.CHAT)
        requested: list[str] = []

        async def cut_first(route: Route) -> None:
            requested.append(route.request.url)
            if len(requested) > 1:
                await route.continue_()
                return
            body = f"id: {place}\nevent: board\ndata: {board}\n\n: keep-alive\n\nevent: envelope\ndata: {{"
            await route.fulfill(status=200, content_type="text/event-stream", body=body)

        await tab.page.route(re.compile(r"/spaces/review/events"), cut_first)
        page = await open_dashboard()
        await expect(page.get_by_role("log").locator(".said")).to_have_text(["said while nobody listened"])
        assert requested[1].endswith(f"/spaces/review/events?since={place}")


async def test_events_parse_the_same_however_they_are_split(open_dashboard: OpenDashboard) -> None:
    page = await open_dashboard()
    events = await page.evaluate(
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_enough_contrast_in_both_colour_schemes(
    open_dashboard: OpenDashboard, join: Join, tab: Tab, scheme: Any
) -> None:
    await tab.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        await coder.report(
            tokens=118_000, **WINDOW, status="near_limit", context={**REPORTED, "level": "near_limit", "severity": 2}
        )
        unknown = {"basis": "unknown", "reason": "no_call_yet"}
        await writer.report(**WINDOW, status="compacting", context=unknown)
        await writer.send_envelope(kinds.CHAT, {"text": "hello"}, to=["coder"])
        await page.get_by_role("log").get_by_text("hello", exact=True).wait_for()
        await expect(page.get_by_role("img", name="Context of writer: Unknown")).to_be_visible()
        too_faint = await page.evaluate(CONTRAST)
        assert too_faint == []


CONTRAST = """() => {
    const luminance = (rgb) => {
        const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const ground = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour.slice(0, 3);
        }
        return [255, 255, 255];
    };
    const faint = [];
    for (const node of document.querySelectorAll("body *")) {
        const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
        if (!hasText || !node.checkVisibility()) continue;
        const colour = parse(getComputedStyle(node).color).slice(0, 3);
        const [high, low] = [colour, ground(node)].map(luminance).sort((a, b) => b - a);
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < 4.5) faint.push(`${node.textContent.trim()}: ${ratio.toFixed(2)}`);
    }
    return faint;
}"""


async def test_nothing_overflows_a_narrow_screen(open_dashboard: OpenDashboard, join: Join, tab: Tab) -> None:
    await tab.page.set_viewport_size({"width": 360, "height": 800})
    page = await open_dashboard()
    async with join("coder") as coder:
        long = "a_name_without_any_place_to_break_it" * 6
        await coder.report(tokens=98_412, **WINDOW, status=long, context={**REPORTED, "model": long, "level": long})
        await coder.send_envelope(kinds.CHAT, {"text": long})
        await page.get_by_role("log").get_by_text(long).wait_for()
        await expect(slot(card(page, "coder"), "tokens")).to_have_text("98,412")
        widths = await page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert widths[0] == widths[1] == 360


async def test_reduced_motion_stops_animations(open_dashboard: OpenDashboard, join: Join, tab: Tab) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, status="compacting", context=REPORTED)
        fill = slot(card(page, "coder"), "fill")
        await expect(fill).to_have_css("animation-name", "breathe")
        await page.emulate_media(reduced_motion="reduce")
        await expect(fill).to_have_css("animation-name", "none")
