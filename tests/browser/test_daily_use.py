"""What a person does all day on a page that changes while it is used: reads, points, presses and sends."""

from mew_protocol import kinds
from playwright.async_api import expect

from tests.browser.conftest import HOSTILE, Join, OpenDashboard
from tests.browser.test_dashboard import REPORTED, WINDOW, part, row

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
