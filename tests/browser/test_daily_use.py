"""What a person does all day on a page that changes while it is used: reads, points, presses and sends."""

import pytest
from mew_protocol import kinds
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from playwright.async_api import Page, Route, expect

from tests.browser.conftest import HOSTILE, Join, OpenDashboard, Tab
from tests.browser.test_dashboard import REPORTED, WINDOW, log, part, row
from tests.support.waiting import until

CALL = {"method": "tools/call", "params": {"name": "deploy", "arguments": {"to": "test"}}}


FRAMES = "() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))"


async def test_a_tile_keeps_the_focus_when_figures_change(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        await coder.report(tokens=10_000, **WINDOW, context=REPORTED)
        await writer.report(tokens=20_000, **WINDOW, context=REPORTED)
        tile = page.locator(".tile[data-id=coder]")
        await tile.focus()
        await writer.report(tokens=50_000, **WINDOW, context=REPORTED)
        await expect(page.locator(".tile[data-id=writer]")).to_contain_text("39%")
        await expect(tile).to_be_focused()
        await coder.report(tokens=100_000, **WINDOW, context=REPORTED)  # now the first one
        await expect(page.locator(".tile").first).to_have_attribute("data-id", "coder")
        await expect(tile).to_be_focused()


async def test_a_pin_keeps_the_focus_when_another_is_added(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    pins = [{"id": f"p{index}", "hash": "0" * 8, "tokens": 5, "origin": "ada", "seconds": 1.0} for index in range(2)]
    async with join("coder") as coder:
        await coder.report(tokens=10_000, **WINDOW, context={**REPORTED, "pins": pins[:1]})
        await page.locator("[data-section=pins] > summary").click()
        remove = page.get_by_role("button", name="Remove pin p0")
        await remove.focus()
        await coder.report(tokens=10_005, **WINDOW, context={**REPORTED, "pins": pins})
        await page.get_by_role("button", name="Remove pin p1").wait_for()
        await expect(remove).to_be_focused()


async def test_the_chart_keeps_the_figure_that_is_read(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=10_000, **WINDOW, context=REPORTED)
        await expect(part(page, "amount")).to_have_text("10,000")
        await expect(part(page, "known")).to_contain_text("1 s ago")  # the gateway keeps one figure a second
        await coder.report(tokens=90_000, **WINDOW, context=REPORTED)
        await expect(part(page, "amount")).to_have_text("90,000")
        await page.locator("#detail .plot").focus()
        await page.keyboard.press("Home")
        reading = page.locator("#detail .reading")
        await expect(reading).to_contain_text("10,000")
        await coder.report(tokens=95_000, **WINDOW, context=REPORTED)
        await expect(part(page, "amount")).to_have_text("95,000")
        await expect(reading).to_contain_text("10,000")
        await page.keyboard.press("ArrowRight")
        await expect(reading).to_contain_text("90,000")


async def test_a_press_on_a_row_selects_it_although_rows_move(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join(HOSTILE) as hostile, join("writer") as writer:
        await coder.report(tokens=20_000, **WINDOW, context=REPORTED)
        await hostile.report(tokens=10_000, **WINDOW, context=REPORTED)
        await expect(row(page, "coder")).to_have_attribute("aria-posinset", "1")
        box = await row(page, "coder").bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + 50, box["y"] + 20)
        await page.mouse.down()
        await writer.report(tokens=100_000, **WINDOW, context=REPORTED)  # a new agent moves the others at once
        await writer.request(kinds.MCP_PROPOSAL, CALL, to=["coder"])
        await page.wait_for_function("() => document.title.startsWith('(1)')")  # both have arrived
        await page.evaluate(FRAMES)
        await page.mouse.up()
        await expect(row(page, "coder")).to_have_attribute("aria-posinset", "2")
        await expect(row(page, "coder")).to_have_attribute("aria-selected", "true")
        await expect(page.locator("#detail-title")).to_have_text("coder")


async def test_a_turn_of_an_agent_that_left_is_not_working(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=10_000, **WINDOW, context=REPORTED)
        turn = await coder.request(kinds.REASONING_START, {"message": "x"}, to=["ada"])
        await log(page).get_by_text("working …").wait_for()
    lost = log(page).get_by_text("connection lost; the answer may still come")
    await lost.wait_for()
    await expect(log(page).get_by_text("working …")).to_have_count(0)
    async with join("coder") as coder:  # the same program, after an outage
        await coder.send_envelope(kinds.REASONING_THOUGHT, {"reasoning": "I go on."}, context=turn)
        await log(page).get_by_text("working …").wait_for()
        await expect(lost).to_have_count(0)
        await coder.send_envelope(kinds.REASONING_CONCLUSION, {"message": "done"}, context=turn)
        await expect(log(page).get_by_text("working …")).to_have_count(0)


async def test_a_page_that_opens_shows_no_turn_of_an_absent_agent_as_working(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    async with join("coder") as coder:
        await coder.request(kinds.REASONING_START, {"message": "x"}, to=["ada"])
    page = await open_dashboard()
    await log(page).get_by_text("connection lost; the answer may still come").wait_for()


async def test_a_message_of_which_the_receipt_was_lost_is_sent_once(open_dashboard: OpenDashboard) -> None:
    page = await open_dashboard()

    async def lose_receipt(route: Route) -> None:
        await route.fetch()
        await route.abort()

    await page.route("**/messages?*", lose_receipt)
    await page.get_by_label("Message").fill("only once")
    await page.keyboard.press("Enter")
    answer = page.locator("#composer-answer")
    await expect(answer).to_have_text("No answer from the gateway; it may have got this.")
    await expect(page.get_by_label("Message")).to_have_value("only once")
    await page.unroute("**/messages?*")
    await page.get_by_label("Message").press("Enter")
    await expect(page.get_by_label("Message")).to_have_value("")
    await page.get_by_label("Message").fill("the next one")
    await page.keyboard.press("Enter")
    await log(page).get_by_text("the next one").wait_for()
    await expect(log(page).get_by_text("only once")).to_have_count(1)


async def test_no_button_of_another_participant_works_offline(config: SpaceConfig, tab: Tab) -> None:
    page = tab.page
    async with serve_gateway(config) as gateway:
        await page.goto(f"{gateway.url}/dashboard#token={gateway.token_of('ada')}&space=review&participant=ada")
        await page.get_by_text("live", exact=True).wait_for()
        await row(page, "coder").click()
    await page.locator("#offline").wait_for()
    await row(page, "writer").click()
    await expect(page.locator("#detail-title")).to_have_text("writer")
    await expect(page.locator("#detail button:not([inert])")).to_have_count(0)


PRESS = "one => one.click()"
"""A real click would first scroll to the button, and that loads older messages, too."""


async def test_older_messages_continue_where_the_page_begins(open_dashboard: OpenDashboard, join: Join) -> None:
    """A page drops its oldest entries; older messages are then read from there, not from where it began."""
    page = await open_dashboard()
    async with join("coder") as coder:
        for index in range(700):
            await coder.send_envelope(kinds.CHAT, {"text": f"message {index}."})
        await log(page).get_by_text("message 699.").wait_for()
        await expect(log(page).get_by_text("message 50.")).to_have_count(0)
        await page.get_by_role("button", name="Load older messages").evaluate(PRESS)
        await log(page).get_by_text("message 50.").wait_for(state="attached")
        await expect(log(page).get_by_text("…", exact=True)).to_have_count(0)  # the page draws a part at a time
    numbers = "all => all.map((one) => Number(/message (\\d+)/.exec(one.textContent)[1]))"
    shown = await log(page).locator("article.chat").evaluate_all(numbers)
    assert shown == list(range(shown[0], 700))


async def test_q_opens_what_needs_the_user_on_a_phone(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    await page.set_viewport_size({"width": 360, "height": 740})
    async with join("coder") as coder:
        await coder.request(kinds.MCP_PROPOSAL, CALL, to=["writer"])
        approve = page.locator("#queue-items").get_by_role("button", name="Approve")
        await approve.wait_for()
        await page.locator("#queue-fold").click()
        await expect(approve).to_be_hidden()
        await page.keyboard.press("q")
        await expect(approve).to_be_focused()


async def test_a_proposal_that_is_read_stays_the_same_text(open_dashboard: OpenDashboard, join: Join) -> None:
    """Screen readers would read it again, and a selection would be lost."""
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.request(kinds.MCP_PROPOSAL, CALL, to=["writer"])
        await log(page).get_by_role("button", name="Approve").and_(page.locator(":enabled")).wait_for()
        entry = await log(page).locator("article.proposal").element_handle()
        await coder.request(kinds.MCP_PROPOSAL, CALL, to=["writer"])
        await expect(log(page).get_by_role("button", name="Approve").and_(page.locator(":enabled"))).to_have_count(2)
        assert await entry.evaluate("(node) => node.isConnected")


async def test_a_streamed_answer_is_announced_once(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        turn = await coder.request(kinds.REASONING_START, {"message": "x"}, to=["ada"])
        article = log(page).locator("article.turn")
        await expect(article).to_have_attribute("aria-busy", "true")
        await coder.send_envelope(kinds.REASONING_CONCLUSION, {"message": "done"}, context=turn)
        await expect(article).not_to_have_attribute("aria-busy", "true")


async def test_a_page_that_slept_connects_again_at_once(
    gateway: RunningGateway, open_dashboard: OpenDashboard, tab: Tab
) -> None:
    page = await open_dashboard()
    before = sum("/events" in one for one in tab.addresses)
    await page.evaluate("() => { const now = Date.now; Date.now = () => now() + 60_000; }")  # timers stand still
    async with page.expect_request("**/events?*"):
        pass
    await page.get_by_text("live", exact=True).wait_for()
    await page.reload()  # with the browser's own clock
    assert sum("/events" in one for one in tab.addresses) > before


async def test_nothing_that_was_said_remains_after_signing_out(open_dashboard: OpenDashboard) -> None:
    page = await open_dashboard()
    await page.get_by_label("Message").fill("/invite x chat")
    await page.keyboard.press("Enter")
    await expect(page.locator("#composer-answer")).to_contain_text("x was added. Its token")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.locator("#composer-answer")).to_have_text("")
    await expect(page.locator("#announcer")).to_have_text("")


NO_NOTES = """() => {
    window.Notification = class {
        static permission = "granted";
        static requestPermission = async () => "granted";
        constructor() { throw new TypeError("Illegal constructor"); }
    };
    document.hasFocus = () => false;
}"""
"""Notifications as in Chromium on Android, which only a service worker may make."""


async def test_a_browser_that_cannot_notify_still_shows_what_waits(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    await page.evaluate(NO_NOTES)
    await page.get_by_role("button", name="Notify").click()
    async with join("coder") as coder:
        await coder.request(kinds.MCP_PROPOSAL, CALL, to=["writer"])
        await page.locator("#queue-items").get_by_role("button", name="Approve").wait_for()


async def test_permissions_that_could_not_be_read_are_read_again(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    async def refuse(route: Route) -> None:
        await route.fulfill(status=429, json={"error": "rate_limited"})

    await tab.page.route("**/participants?*", refuse, times=1)
    async with join("coder") as coder:
        await coder.report(tokens=10_000, **WINDOW, context=REPORTED)
        page = await open_dashboard()
        await page.locator("#detail").get_by_role("button", name="Compact").wait_for()


@pytest.mark.parametrize("place", ["#messages", "#queue-items"])
async def test_two_clicks_on_approve_are_one_decision(
    open_dashboard: OpenDashboard, join: Join, tab: Tab, place: str
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        await coder.request(kinds.MCP_PROPOSAL, CALL, to=["writer"])
        approve = page.locator(place).get_by_role("button", name="Approve").and_(page.locator(":enabled"))
        await approve.wait_for()
        await approve.dblclick()
        await writer.received(kinds.MCP_REQUEST)
        await log(page).get_by_text("approved by ada").wait_for()
        assert sum(one.endswith("/messages?space=review") for one in tab.addresses) == 1


async def test_enter_that_ends_a_composition_sends_nothing(open_dashboard: OpenDashboard) -> None:
    page = await open_dashboard()
    message = page.get_by_label("Message")
    await message.fill("かな")
    ends = "(node) => node.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', keyCode: 229, bubbles: true }))"
    await message.evaluate(ends)  # Safari sends it after the composition
    await expect(message).to_have_value("かな")


async def test_who_joined_later_is_not_listed_at_an_earlier_time(sign_in_page: Page) -> None:
    lines = await sign_in_page.evaluate("""async () => {
        const { Conversation } = await import("/dashboard/conversation.js");
        const conversation = new Conversation("ada");
        for (const [id, ts] of [["coder", "10:00:00"], ["writer", "10:00:20"], ["eve", "14:00:00"]]) {
            const said = { text: "joined", about: [id] };
            const payload = { event: "join", participant: { id } };
            const head = { id, ts: `2026-01-01T${ts}Z`, from: "gateway", kind: "system/presence" };
            conversation.receive({ ...head, payload, said });
        }
        return [...conversation.entries.values()].map((one) => [one.ts.slice(11, 16), ...one.about]);
    }""")
    assert lines == [["10:00", "coder", "writer"], ["14:00", "eve"]]


async def test_a_status_ends_a_compaction_as_it_does_for_the_command(open_dashboard: OpenDashboard, join: Join) -> None:
    """A participant without the capability `participant/compact-done` reports the outcome in its status."""
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context=REPORTED)
        await page.get_by_role("button", name="Compact: coder").click()
        await page.get_by_role("button", name="Compact", exact=True).click()
        asked = await coder.received(kinds.PARTICIPANT_COMPACT)
        said = page.locator("#detail > .answer")
        await coder.report(status="compacting", tokens=98_412, **WINDOW, context=REPORTED, about=[asked["id"]])
        await expect(part(page, "word")).to_have_text("compacting")
        await expect(said).to_have_text("Compacting 98,412 tokens …")
        await coder.report(status="compacted", tokens=20_000, **WINDOW, context=REPORTED, about=[asked["id"]])
        await expect(said).to_have_text("Compacted.")


async def test_a_form_that_is_filled_in_stays_when_the_first_agent_arrives(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    await page.get_by_text("Add a participant").click()
    name = page.locator("#detail").get_by_label("Name", exact=True)
    await name.fill("revi")
    async with join("coder") as coder:
        await coder.report(tokens=10_000, **WINDOW, context=REPORTED)
        await expect(row(page, "coder")).to_contain_text("10,000")
        await page.keyboard.type("ewer")
        await expect(name).to_have_value("reviewer")


async def test_a_token_that_is_shown_once_is_there_after_a_look_elsewhere(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    await page.get_by_text("Add a participant").click()
    await page.locator("#detail").get_by_label("Name", exact=True).fill("bea")
    await page.get_by_role("button", name="Add", exact=True).click()
    copy = page.get_by_role("button", name="Copy token")
    await copy.wait_for()
    await row(page, "bea").click()
    await expect(copy).to_have_count(0)
    await page.get_by_role("button", name="Whole space").click()
    await copy.wait_for()
    await page.get_by_role("button", name="Sign out").click()
    await expect(copy).to_have_count(0)


async def test_what_needs_the_user_is_announced_to_screen_readers(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    announced = page.locator("#announcer")
    async with join("coder") as coder, join("writer") as writer:
        await coder.request(kinds.MCP_PROPOSAL, CALL, to=["writer"])
        await expect(announced).to_contain_text("coder waits for approval of deploy on writer")
        await writer.request(kinds.MCP_PROPOSAL, CALL, to=["coder"])
        await expect(announced).to_contain_text("writer waits for approval of deploy on coder")


async def test_a_search_ends_with_the_session(gateway: RunningGateway, open_dashboard: OpenDashboard) -> None:
    page = await open_dashboard()
    await page.get_by_label("Search participants").fill("cod")
    await expect(page.locator("#shown-count")).to_have_text("1 of 5")
    await page.get_by_role("button", name="Sign out").click()
    await open_dashboard("eve")
    await expect(page.locator("#shown-count")).to_have_text("5")


async def test_a_participant_that_is_removed_reads_that_it_was_signed_out(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    async with join("ada") as ada:
        page = await open_dashboard("eve")
        await ada.send_envelope(kinds.CHAT, {"text": "for eve's eyes"})
        await log(page).get_by_text("for eve's eyes").wait_for()
        await ada.send_envelope(kinds.SPACE_KICK, {"participant_id": "eve"})
        await expect(page.get_by_role("alert")).to_contain_text("You were signed out: invalid token")
        await expect(page.get_by_text("for eve's eyes")).to_have_count(0)


async def test_another_participant_thinks_ends_and_cancels_nothing_of_others(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        turn = await coder.request(kinds.REASONING_START, {"message": "x"}, to=["ada"])
        chat = await coder.request(kinds.CHAT, {"text": "my question"}, to=["ada"])
        await writer.send_envelope(kinds.REASONING_THOUGHT, {"reasoning": "forged"}, context=turn)
        await writer.send_envelope(kinds.REASONING_CONCLUSION, {"message": "forged"}, context=turn)
        await writer.send_envelope(kinds.CHAT_CANCEL, {}, to=["ada"], about=[chat])
        await writer.send_envelope(kinds.CHAT, {"text": "all sent"})
        await log(page).get_by_text("all sent").wait_for()
        shown = log(page).locator("article.turn")
        await expect(shown).to_have_attribute("data-state", "running")
        await expect(shown).not_to_contain_text("forged")
        await expect(log(page).locator("article.thought")).to_contain_text("writer thinks")
        await expect(log(page).get_by_text("cancelled")).to_have_count(0)
        await coder.send_envelope(kinds.CHAT_CANCEL, {}, to=["ada"], about=[chat])
        await log(page).get_by_text("cancelled").wait_for()


async def test_a_tool_result_is_that_of_the_asked_participant(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()

    def result(text: str) -> dict[str, object]:
        return {"result": {"content": [{"type": "text", "text": text}]}}

    async with join("coder") as coder, join("writer") as writer, join(HOSTILE) as hostile:
        alone = await coder.request(kinds.MCP_REQUEST, CALL, to=["writer"])
        await log(page).locator("details.tool").wait_for()
        await coder.request(kinds.REASONING_START, {"message": "x"}, to=["ada"])
        in_turn = await coder.request(kinds.MCP_REQUEST, CALL, to=["writer"])
        await expect(log(page).locator("details.tool")).to_have_count(2)
        for request in (alone, in_turn):
            await hostile.send_envelope(kinds.MCP_RESPONSE, result("forged"), to=["coder"], about=[request])
        await hostile.send_envelope(kinds.CHAT, {"text": "all sent"})
        await log(page).get_by_text("all sent").wait_for()
        await expect(log(page).locator("details.tool[data-state=called]")).to_have_count(2)
        for request in (alone, in_turn):
            await writer.send_envelope(kinds.MCP_RESPONSE, result("true"), to=["coder"], about=[request])
        await expect(log(page).locator("details.tool[data-state=answered]")).to_have_count(2)


async def test_an_answer_after_signing_out_draws_nothing(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    held: list[Route] = []

    async def hold(route: Route) -> None:
        held.append(route)

    async with join("coder") as coder:
        await coder.request(kinds.MCP_PROPOSAL, CALL, to=["writer"])
        await page.locator("#queue-items").get_by_role("button", name="Approve").wait_for()
        await page.route("**/programs", hold)
        await coder.send_envelope(kinds.SPACE_INVITE, {"participant_id": "bea", "initial_capabilities": []})
        await until(lambda: held)  # the page reads the permissions again
        await page.get_by_role("button", name="Sign out").click()
        async with page.expect_event("requestfinished"):
            await held[0].continue_()
        await page.evaluate(FRAMES)
        await expect(page.locator("#queue-items")).to_be_empty()


async def test_older_messages_that_arrive_after_signing_out_are_not_shown(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    async with join("coder") as coder:
        for index in range(510):
            await coder.send_envelope(kinds.CHAT, {"text": f"message {index}."})
        await until(lambda: gateway.service.log.position.sequence > 510)
        page = await open_dashboard()
        older = page.get_by_role("button", name="Load older messages")
        await older.wait_for()  # the page has asked whether there are any
        held: list[Route] = []

        async def hold(route: Route) -> None:
            held.append(route)

        await page.route("**/messages?*", hold)
        await older.evaluate(PRESS)
        await until(lambda: held)
        await page.get_by_role("button", name="Sign out").click()
        async with page.expect_event("requestfinished"):
            await held[0].continue_()
        await page.evaluate(FRAMES)
        await expect(page.locator("#messages")).to_be_empty()
