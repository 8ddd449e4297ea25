"""The page as people use it every day: addresses, mistakes, phones, lost connections, paper, and large teams."""

import re
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mew_protocol import kinds
from mew_protocol.codec import read_draft
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from playwright.async_api import Page, expect

from tests.browser.conftest import Join, OpenDashboard, Tab, inaccessible
from tests.browser.test_dashboard import REPORTED, WINDOW, log, row

CALL = {"method": "tools/call", "params": {"name": "edit", "arguments": {"path": "a.py", "text": "x\n" * 10}}}


async def test_the_address_names_the_selected_agent_and_back_returns(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    title = page.locator("#detail-title")
    async with join("coder") as coder, join("writer") as writer:
        for one in (coder, writer):
            await one.report(tokens=9_000, **WINDOW, context=REPORTED)
        for name in ("coder", "writer"):
            await row(page, name).click()
            await expect(title).to_have_text(name)
            assert page.url.endswith(f"/dashboard#show={name}")
        await page.go_back()
        await expect(title).to_have_text("coder")
        await page.reload()
        await expect(title).to_have_text("coder")
        await page.go_back()
        await expect(title).to_have_text("The whole space")
        await page.go_forward()
        await expect(title).to_have_text("coder")


async def test_a_problem_leaves_with_the_next_key_and_a_name_sets_the_recipient(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer"):
        await coder.report(tokens=9_000, **WINDOW, context=REPORTED)
        text, said = page.get_by_label("Message"), page.locator("#composer-answer")
        await page.get_by_label("To", exact=True).select_option("everyone")
        await text.fill("/frobnicate")
        await page.keyboard.press("Enter")
        await expect(said).to_contain_text("Unknown command")
        await page.keyboard.type("x")
        await expect(said).to_be_hidden()
        await text.fill("@writer ")
        await expect(page.get_by_label("To", exact=True)).to_have_value("writer")
        await text.fill("@coder please look")
        await expect(page.get_by_label("To", exact=True)).to_have_value("coder")
        await page.keyboard.press("Enter")
        assert (await coder.received(kinds.CHAT))["to"] == ["coder"]


async def test_a_chosen_recipient_stays_when_the_first_agent_arrives(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("writer"):
        to = page.get_by_label("To", exact=True)
        await to.select_option("writer")
        async with join("coder") as coder:
            await coder.report(tokens=9_000, **WINDOW, context=REPORTED)
            await expect(page.locator("#detail-title")).to_have_text("coder")
            await expect(to).to_have_value("writer")


@pytest.mark.parametrize("size", [(360, 740), (640, 400), (1280, 800)])
async def test_an_approval_is_in_view_next_to_any_other_item(
    open_dashboard: OpenDashboard, join: Join, tab: Tab, size: tuple[int, int]
) -> None:
    await tab.page.set_viewport_size({"width": size[0], "height": size[1]})
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        unknown = {"basis": "unknown", "reason": "no_call_yet"}
        await writer.report(**WINDOW, status="model_unreachable", context=unknown)
        await page.locator("#queue .item").first.wait_for()
        await coder.send_envelope(kinds.MCP_PROPOSAL, CALL, to=["writer"])
        item = page.locator("#queue .item-proposal")
        await expect(item).to_contain_text("coder waits for approval of edit on writer")
        await expect(item.locator(".call")).to_be_in_viewport()
        await expect(item.get_by_role("button", name="Approve")).to_be_in_viewport()
        composer, tabs = await page.locator("#composer").bounding_box(), await page.locator("#tabs").bounding_box()
        assert composer is not None
        if tabs is not None:  # neither covers the other once it is scrolled to
            await page.locator("#composer").evaluate("one => one.scrollIntoView({ block: 'end' })")
            await page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
            composer = await page.locator("#composer").bounding_box()
            assert composer is not None
            assert composer["y"] + composer["height"] <= tabs["y"] + 1


async def test_offline_holds_for_every_participant(config: SpaceConfig, tab: Tab) -> None:
    page = tab.page
    async with serve_gateway(config) as gateway:
        await page.goto(f"{gateway.url}/dashboard#token={gateway.token_of('ada')}&space=review&participant=ada")
        await page.get_by_text("live", exact=True).wait_for()
        await expect(page.locator("#offline")).to_be_hidden()
        await page.get_by_label("Message").fill("hello")
    await expect(page.locator("#offline")).to_have_text(re.compile("^Offline since .*as it was then"))
    await expect(page.locator("#participants")).to_have_css("filter", "grayscale(1)")
    await page.get_by_label("Message").press("Enter")
    await expect(page.locator("#composer-answer")).to_contain_text("Offline: your message stays here.")
    await expect(page.get_by_label("Message")).to_have_value("hello")
    async with serve_gateway(config, port=gateway.port, tokens=gateway.tokens):
        await page.get_by_text("live", exact=True).wait_for()
        await expect(page.locator("#offline")).to_be_hidden()
        await page.get_by_label("Message").press("Enter")
        await expect(log(page).locator(".chat")).to_contain_text("hello")


async def test_paper_has_all_panes_and_no_controls(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=9_000, **WINDOW, context=REPORTED)
        for number in range(60):
            await coder.send_envelope(kinds.CHAT, {"text": f"message {number}"})
        await log(page).get_by_text("message 59").wait_for()
        await page.emulate_media(media="print")
        for pane in ("participants", "conversation", "detail"):
            await expect(page.locator(f".pane-{pane}")).to_be_visible()
        await expect(page.locator("#composer")).to_be_hidden()
        heights = "list => [list.scrollHeight, list.clientHeight]"
        whole, shown = await page.locator("#messages").evaluate(heights)
        assert whole == shown
        await page.emulate_media(media="screen")


async def test_older_messages_are_offered_only_where_there_are_some(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    offer = page.get_by_role("button", name="Load older messages")
    async with join("coder") as coder:
        await coder.send_envelope(kinds.CHAT, {"text": "the first"})
        await log(page).get_by_text("the first").wait_for()
        await page.reload()
        await log(page).get_by_text("the first").wait_for()
        await expect(offer).to_be_hidden()
        for number in range(600):
            draft = read_draft({"kind": kinds.CHAT, "payload": {"text": f"message {number}"}})
            gateway.service.receive(None, ParticipantId("coder"), draft)
        await page.reload()
        await expect(offer).to_be_visible()


async def test_a_colour_belongs_to_an_agent_not_to_its_rank(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    colours = "nodes => Object.fromEntries(nodes.map((one) => [one.textContent, one.firstChild.dataset.series]))"
    names = page.locator(".series-names li")
    async with join("coder") as coder, join("writer") as writer:
        await coder.report(tokens=90_000, **WINDOW, context=REPORTED)
        await writer.report(tokens=20_000, **WINDOW, context=REPORTED)
        await expect(names).to_have_text(["coder", "writer"])
        before = await names.evaluate_all(colours)
        await writer.report(tokens=99_000, **WINDOW, context=REPORTED)
        await expect(names).to_have_text(["writer", "coder"])
        assert await names.evaluate_all(colours) == before
        assert len({*before.values()}) == 2


async def test_the_verbs_of_the_command_line_work_in_the_composer(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    said = page.locator("#composer-answer")

    async def run(line: str) -> None:
        await page.get_by_label("Message").fill(line)
        await page.keyboard.press("Escape")  # completion
        await page.get_by_role("button", name="Send", exact=True).click()

    async with join("eve") as eve, join("coder") as coder:
        await coder.report(tokens=9_000, **WINDOW, context=REPORTED)
        await run("/grant eve participant/compact")
        granted = (await eve.received(kinds.CAPABILITY_GRANT))["payload"]
        assert (granted["recipient"], granted["capabilities"]) == ("eve", [{"kind": "participant/compact"}])
        await run("/revoke eve participant/compact")
        await eve.received(kinds.CAPABILITY_REVOKE)
        await run("/invite grace person")
        await expect(said).to_contain_text("grace was added. Its token, shown only once: ")
        await run("/constructor coder")
        await expect(said).to_have_text("Unknown command /constructor. Type / to see the commands.")
        await run("/status coder")
        asked = await coder.received(kinds.PARTICIPANT_REQUEST_STATUS)
        await coder.report(status="compacting", to=["ada"], about=[asked["id"]])
        await expect(said).to_have_text("coder: Compacting.")
        await run("/forget coder")
        asked = await coder.received(kinds.PARTICIPANT_FORGET)
        await coder.report(status="forgetting", about=[asked["id"]])
        await coder.report(status="forgot", about=[asked["id"]])
        await expect(said).to_have_text("coder: Forgot.")
        await run("/restart coder")  # the old name
        asked = await coder.received(kinds.PARTICIPANT_RESTART)
        await coder.report(status="restarted", to=["ada"])
        assert asked["to"] == ["coder"]
        await run("/invite x robot")
        await expect(said).to_contain_text("'robot' is not one of person, agent, tool, or a kind")
        await run("/invite x chat mcp/*")
        await expect(said).to_contain_text("x was added.")
        await row(page, "x").wait_for()
        await page.get_by_label("To", exact=True).select_option("coder")
        await run("/remove nobody")
        await expect(said).to_have_text("/remove needs the name of a participant, not 'nobody'.")
        await run("/kick x")
        await expect(said).to_contain_text("Accepted by the gateway.")
        await expect(row(page, "x")).to_have_count(0)
        await run("/approve")
        await expect(said).to_have_text("Nothing waits for approval.")


CUT = "all => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
"""The names that are too long for their column."""

TEAM = parse_space(
    'space: {id: review}\nparticipants:\n  ada: {capabilities: [{kind: "**"}]}\n'
    + "".join(f"  agent-{number:02}: {{capabilities: [{{kind: participant/status}}]}}\n" for number in range(60))
)


@pytest.mark.parametrize("config", [TEAM])
async def test_a_team_of_sixty_is_read_in_one_look(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    async with AsyncExitStack() as members:
        await _join_team(gateway, join, members, {})
        await tab.page.set_viewport_size({"width": 1920, "height": 1080})
        await _read_team(await open_dashboard())


async def _join_team(gateway: RunningGateway, join: Join, members: AsyncExitStack, words: dict[int, str]) -> None:
    """Connect sixty agents; every twentieth is near its limit, and `words` are the status of some."""
    for number in range(60):
        name = f"agent-{number:02}"
        near: dict[str, Any] = {"level": "near_limit", "severity": 2} if number % 20 == 7 else {}
        context = {**REPORTED, **near, "model": f"model-{number % 3}"}
        status = {"messages_in_context": 3, "tokens": 1_000 * (number + 1), **WINDOW, "context": context}
        status["status"] = words.get(number, "active")
        await members.enter_async_context(join(name))
        draft = read_draft({"kind": kinds.PARTICIPANT_STATUS, "payload": status})
        assert gateway.service.receive(None, ParticipantId(name), draft).receipt.refused is None


@pytest.mark.parametrize("config", [TEAM])
async def test_trouble_in_a_team_of_sixty_comes_first_and_every_width_is_accessible(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    async with AsyncExitStack() as members:
        troubled = {3: "model_unreachable", 41: "compaction_stalled", 17: "paused", 11: "compacting"}
        await _join_team(gateway, join, members, troubled)
        page, listed = await open_dashboard(), tab.page.get_by_role("listbox", name="Participants").locator("[data-id]")
        first = ["agent-41", "agent-03", "agent-47", "agent-27", "agent-17", "agent-07"]
        for place, name in enumerate(first):
            await expect(page.locator("#detail .tile").nth(place)).to_have_attribute("data-id", name)
            await expect(listed.nth(place)).to_have_attribute("data-id", name)
        for width, views in ((1440, [None]), (390, ["Conversation", "Participants", "Details"])):
            await page.set_viewport_size({"width": width, "height": 900})
            for view in views:
                if view is not None:
                    await page.get_by_role("button", name=view, exact=True).click()
                assert await inaccessible(page) == [], (width, view)
                assert await page.evaluate("document.documentElement.scrollWidth") == width
                assert await page.locator(".row-name:visible").evaluate_all(CUT) == []


async def _read_team(page: Page) -> None:
    tiles = page.locator("#detail .tile")
    await expect(tiles).to_have_count(60)
    for place, name in enumerate(("agent-47", "agent-27", "agent-07")):
        await expect(tiles.nth(place)).to_have_attribute("data-id", name)
    await expect(tiles.last).to_be_in_viewport()
    await expect(page.locator("#glance")).to_contain_text("60 agents · 1,830,000 of 7,680,000 tokens in use")
    await page.get_by_label("Group", exact=True).select_option("by model")
    await expect(page.locator(".group-name b")).to_have_text(["model-2", "model-0", "model-1", "no model reported"])
    await page.get_by_label("Group", exact=True).select_option("by state")
    await expect(page.locator(".group-name").first).to_have_text("in trouble or near the limit3, 22% full")
    await tiles.first.click()
    await expect(page.locator("#detail-title")).to_have_text("agent-47")
