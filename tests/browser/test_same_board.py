"""The page shows what the view of a participant says, with ages counted on; answers have the words of the terminal."""

from typing import Any, Final

from mew_board import changes, words
from mew_board.grouping import GROUPINGS, grouped
from mew_board.view import views_of
from mew_protocol import kinds
from mew_protocol.context_report import LastCompaction
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.retrieval import CompactionEntry
from mew_protocol.shared_words import SKIPPED
from mew_spaces.gateway.gateway import RunningGateway
from playwright.async_api import Page, expect

from mew_agent.parts.terminal.terminal_chat import TerminalChat
from tests.browser.conftest import Join, OpenDashboard
from tests.browser.test_dashboard import COMPACTION, REPORTED, WINDOW, part

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


async def test_groups_without_a_title_have_the_number_of_their_participants(sign_in_page: Page) -> None:
    shown = await sign_in_page.evaluate(
        """async () => {
          const { groupLines } = await import("/dashboard/attention.js");
          const lines = ["one", "two", "two"].map((model) => ({ groups: { model } }));
          const titles = [{ by: "model", name: "one", about: "1, 40% full" }, { by: "role", name: "two", about: "9" }];
          return groupLines(lines.slice(0, 2), "model", titles, lines).map(([title]) => `${title.name} ${title.about}`);
        }"""
    )
    assert shown == ["one 1, 40% full", "two 2"]


async def test_page_and_terminal_write_durations_alike(sign_in_page: Page) -> None:
    shown = await sign_in_page.evaluate(
        """async (all) => {
          const { span } = await import("/dashboard/text.js");
          return all.map((one) => span(1000 * one));
        }""",
        [*DURATIONS],
    )
    assert shown == [words.span(one) for one in DURATIONS]


COMPACTED: Final = {
    "status": "compacted",
    "freed_tokens": 63_630,
    "freed_messages": 12,
    "tokens_before": 98_412,
    "tokens_after": 34_782,
    "max_tokens": 128_000,
}
UNDONE: Final = {"status": "undone", "number": 3, "restored_messages": 12, "restored_tokens": 5_000}
FOUND: Final = {"seq": 4, "id": "m4", "role": "user", "at": "2026-01-01T10:00:00Z", "text": "the door", "sender": "eve"}
ANSWERS: Final[list[tuple[str, dict[str, Any]]]] = [
    *((kinds.PARTICIPANT_COMPACT_DONE, {**COMPACTED, "basis": basis}) for basis in ("exact", "projected")),
    (kinds.PARTICIPANT_COMPACT_DONE, {**COMPACTED, "basis": "server_counted"}),
    (kinds.PARTICIPANT_COMPACT_DONE, {"status": "compacted"}),
    (
        kinds.PARTICIPANT_COMPACT_DONE,
        {"status": "a", "skipped": True, "reason": "already_below_target", "tokens_before": 9},
    ),
    *(
        (kinds.PARTICIPANT_COMPACT_DONE, {"status": "a", "skipped": True, "reason": one})
        for one in (*SKIPPED, "odd_one")
    ),
    (kinds.PARTICIPANT_UNDO_DONE, UNDONE),
    (kinds.PARTICIPANT_UNDO_DONE, {"status": "undone", "number": 3}),
    (kinds.PARTICIPANT_UNDO_DONE, {"status": "refused", "reason": "it would not fit"}),
    (kinds.PARTICIPANT_STATUS, {"messages_in_context": 1, "status": "compaction_failed:no answer"}),
    (kinds.PARTICIPANT_STATUS, {"messages_in_context": 1, "status": "refused: too many pins"}),
]


async def test_page_and_line_chat_word_answers_alike(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    chat, answer = TerminalChat("ada"), page.get_by_role("log").locator(".answer").last
    async with join("ada") as ada, join("coder") as coder:
        for kind, payload in ANSWERS:
            asked = await ada.request(kinds.PARTICIPANT_COMPACT, {}, to=["coder"])
            await coder.send_envelope(kind, payload, to=["ada"], about=[asked])
            headers = {"id": "x", "ts": "", "from": "coder", "to": ["ada"], "correlation_id": [asked]}
            envelope = Envelope.model_validate({**headers, "kind": kind, "payload": payload})
            line = str(chat.receive(envelope)).removeprefix("* coder: ")
            await expect(answer).to_have_text(f"coder: {line[0].upper()}{line[1:]}.")
            if "tokens_after" in payload and payload["basis"] == "projected":
                assert "freed ~63,630 tokens" in line
                assert "now ~34,782 of 128,000 (projected" in line
        await page.reload()  # the past has the answers, but no statuses
        await expect(answer).to_have_text("coder: Not undone: it would not fit.")


async def test_page_and_terminal_list_changes_of_a_context_alike(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        last = {**COMPACTION, "basis": "projected", "reason": "it was full"}
        await coder.report(tokens=92_980, **WINDOW, context={**REPORTED, "last_compaction": last})
        cut = page.locator("#detail .cut")
        line = changes.line(LastCompaction.model_validate(last))
        assert line == "threshold, 116,000 -> ~92,980, freed ~23,020 (projected)"
        await expect(cut.locator("summary")).to_contain_text(line)
        await cut.locator("summary").click()
        await expect(cut.locator(".facts")).to_contain_text("reasonit was full")
        asked = (await coder.received(kinds.PARTICIPANT_REQUEST_HISTORY))["id"]
        entry = {
            **last,
            "number": 3,
            "asked_by": "eve",
            "cost": {"calls": 1, "prompt_tokens": 90, "completion_tokens": 9},
        }
        await coder.send_envelope(kinds.PARTICIPANT_HISTORY, {"entries": [entry]}, to=["ada"], about=[asked])
        asked = (await coder.received(kinds.PARTICIPANT_REQUEST_HISTORY))["id"]
        whole = {"entries": [entry], "summary": "All of it.", "items": [FOUND]}
        await coder.send_envelope(kinds.PARTICIPANT_HISTORY, whole, to=["ada"], about=[asked])
        facts = changes.facts(CompactionEntry.model_validate(entry))
        assert dict(facts)["cost"] == "99 tokens in 1 call"
        for name, value in facts:
            await expect(cut.locator(".facts")).to_contain_text(f"{name}{value}")
        await expect(cut).to_contain_text("All of it.")
