"""The page shows what the view of a participant says, with ages counted on; answers have the words of the terminal."""

from typing import Final

from mew_board import words
from mew_board.grouping import GROUPINGS, grouped
from mew_board.view import views_of
from mew_protocol.payloads.participant import CompactDone
from mew_protocol.shared_words import SKIPPED
from mew_spaces.gateway.gateway import RunningGateway
from playwright.async_api import Page, expect

from tests.browser.conftest import Join, OpenDashboard
from tests.browser.test_dashboard import REPORTED, WINDOW, part

DURATIONS: Final = (0, 59, 60, 3_599, 3_600, 86_399, 86_400, 1_000_000)


async def test_page_shows_every_text_of_the_view(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    parts = [{"part": "prefix", "tokens": 2_000, "basis": "exact"}]
    more = {"compact_at_tokens": 115_200, "turns_to_compaction": 4, "breakdown": parts, "model": "gpt-4o"}
    async with join("coder") as coder:
        await coder.report(tokens=98_412, **WINDOW, context={**REPORTED, **more})
        await part(page, "known").get_by_text("compacts in ~4 turns").wait_for()
        await gateway.service.attention.refresh_views()
        view = gateway.service.attention.views.since(None, gateway.service.now())
        (line,) = [one for one in view.participants if one.id == "coder"]
        shown = await page.locator("#detail").text_content() or ""
        for text in (line.amount, line.window, line.level, line.share, line.due, line.model, *line.remarks):
            assert text in shown
        for one in line.parts:
            assert f"{one.name}{one.amount}{one.share}" in shown
        facts = dict(line.facts)
        assert facts["compacts at"] == "115,200"
        assert all(name in shown for name in facts)
        assert words.AGE_MARK in line.origin
        assert words.AGE_MARK not in shown


async def test_page_shows_the_group_titles_of_the_terminal(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        await coder.report(tokens=410, max_tokens=1_000, context={**REPORTED, "model": "one"})
        await writer.report(tokens=723, max_tokens=1_000, context={**REPORTED, "basis": "projected", "model": "one"})
        await page.locator("#participants").get_by_text("~723 of").wait_for()
        views = views_of(gateway.service.board(), now=gateway.service.now(), people=("ada", "eve"), agents=("coder",))
        for by in GROUPINGS:
            await page.get_by_label("Group", exact=True).select_option(by)
            titles = [f"{one.name}{one.about}" for one in grouped(views, by)]
            await expect(page.locator(".group-name")).to_have_text(titles)
        await page.get_by_label("Group", exact=True).select_option("model")
        await expect(page.locator(".group-name").first).to_have_text("one2, ~57% full")
        options = await page.locator("#group option").evaluate_all("all => all.map((one) => one.value)")
        assert {*options} == {"none", *GROUPINGS}


async def test_page_and_terminal_write_durations_alike(sign_in_page: Page) -> None:
    shown = await sign_in_page.evaluate(
        """async (all) => {
          const { span } = await import("/dashboard/text.js");
          return all.map((one) => span(1000 * one));
        }""",
        [*DURATIONS],
    )
    assert shown == [words.span(one) for one in DURATIONS]


async def test_page_and_terminal_explain_skipped_compactions_alike(sign_in_page: Page) -> None:
    answers = await sign_in_page.evaluate(
        """async (reasons) => {
          const { compactAnswer } = await import("/dashboard/text.js");
          return reasons.map((reason) => compactAnswer({ skipped: true, reason }));
        }""",
        [*SKIPPED],
    )
    for reason, answer in zip(SKIPPED, answers, strict=True):
        said = words.compaction(CompactDone(status="skipped", skipped=True, reason=reason)).removeprefix("skipped, ")
        assert said in answer, (said, answer)
