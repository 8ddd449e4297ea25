"""Page, terminal application, line chat and `mew status` show one view: every state, request, answer and change."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mew_board import changes, words
from mew_board.board_json import Grouping
from mew_board.figures import span
from mew_board.grouping import GROUPINGS, grouped
from mew_board.shared_words import FILTER_WORDS, SKIPPED
from mew_board.view import ParticipantView, views_of
from mew_protocol import kinds
from mew_protocol.context_report import LastCompaction, PinReport
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.retrieval import CompactionEntry
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.gateway import RunningGateway
from playwright.async_api import Page, expect

from mew_agent.cli.board.needs import attention_lines
from mew_agent.cli.board.table import TerminalStyle, board_lines
from mew_agent.cli.remote.identity import Identity
from mew_agent.parts.terminal.app import SpaceApp
from mew_agent.parts.terminal.widgets import BoardList
from tests.browser.conftest import HOSTILE, Join, OpenDashboard
from tests.browser.test_dashboard import COMPACTION, REPORTED, WINDOW, part
from tests.support.terminal_app import Screen
from tests.support.typed_chat import TypedChat

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
        for text in (line.amount, line.window, line.fullness, line.due, line.about, *line.remarks):
            assert text in shown
        for one in line.parts:
            assert f"{one.name}{one.amount}{one.share}" in shown
        facts = dict(line.facts)
        assert facts["compacts at"] == "115,200"
        assert all(name in shown for name in facts)
        assert words.AGE_MARK in line.origin
        assert words.AGE_MARK not in shown


PEOPLE: Final = ("ada", "eve")
SPACE_STYLE: Final = TerminalStyle(width=300)


def pin(name: str, origin: str) -> dict[str, Any]:
    return {"id": name, "hash": f"{name}{'0' * 14}", "tokens": 40, "origin": origin}


SESSION: Final = {
    "session": "s1",
    "participant": "eve",
    "messages_in_context": 2,
    "tokens": 4_120,
    "max_tokens": 8_192,
    "context": {**REPORTED, "basis": "projected"},
}


def wait(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "what": "write on files", "since": hours_ago(2), **more}


def hours_ago(hours: int) -> str:
    return (datetime.now(UTC) - timedelta(hours=hours, minutes=5)).isoformat()


def states() -> dict[str, dict[str, Any]]:
    """A status of each kind: sessions, pins, waits, work in progress, and a figure that is not known."""
    busy = {
        "pins": [pin("p1", "ada"), pin("p2", "agent settings")],
        "sessions": [SESSION],
        "waiting": [wait("approval"), wait("tools", peer="files"), wait("budget", peer="eve")],
        "stale_messages": 3,
        "measured_at": hours_ago(3),
        "injection": {"kind": "recovery_prompt", "remaining": 2},
    }
    work = {"kind": "compaction", "done": 1, "total": 5, "unit": "pieces", "since": hours_ago(2)}
    return {
        "coder": {"tokens": 410, "max_tokens": 1_000, "status": "waiting_for_approval:write", "context": busy},
        "writer": {"tokens": 723, "max_tokens": 1_000, "status": "compacting", "context": {"progress": work}},
        "hostile": {"max_tokens": 1_000, "status": "model_unreachable", "context": {"reason": "usage_unavailable"}},
    }


@asynccontextmanager
async def terminal_application(gateway: RunningGateway) -> AsyncIterator[Screen]:
    app = SpaceApp(Identity(gateway.ws_url, "review", "ada", gateway.token_of("ada")))
    app.view.people = frozenset(PEOPLE)  # as it reads them from space.yaml where it is on this machine
    async with app.run_test(size=(220, 60)) as pilot:
        screen = Screen(pilot)
        await screen.shows("you are ada")
        yield screen


def views_in(gateway: RunningGateway) -> list[ParticipantView]:
    """The views that all surfaces show."""
    items = gateway.service.attention.items
    return views_of(gateway.service.board(), now=gateway.service.now(), people=PEOPLE, items=items)


def table(gateway: RunningGateway, by: Grouping | None = None) -> str:
    """What `mew status` prints."""
    items, now = gateway.service.attention.items, gateway.service.now()
    lines = attention_lines(items, now=now, style=SPACE_STYLE)
    board = gateway.service.board()
    return "\n".join([*lines, *board_lines(board, now=now, style=SPACE_STYLE, people=PEOPLE, items=items, by=by)])


async def test_page_terminal_and_table_show_the_same_states(
    config: SpaceConfig, gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    named = {HOSTILE if name == "hostile" else name: one for name, one in states().items()}
    async with AsyncExitStack() as stack:
        for name, status in named.items():
            basis = "projected" if name == "writer" else "reported" if "tokens" in status else "unknown"
            member = await stack.enter_async_context(join(name))
            await member.report(**{**status, "context": {**REPORTED, "basis": basis, **status["context"]}})
        await expect(page.locator("#participants [role=option]")).to_have_count(len(config.participants))
        await expect(page.locator("#queue")).to_contain_text("cannot reach its model")
        await gateway.service.attention.refresh_views()
        screen = await stack.enter_async_context(terminal_application(gateway))
        await screen.pilot.press("f2")
        for view in views_in(gateway):
            if not view.has_context:
                continue
            row = page.locator("#participants [role=option]").filter(has_text=view.name)
            await expect(row).to_contain_text(view.word)
            await expect(row).to_contain_text(view.figure)
            await row.click()
            await expect(page.locator("#detail-title")).to_have_text(view.name)
            while screen.app.query_one(BoardList).chosen != view.id:
                await screen.pilot.press("down")
            shown = await screen.shows(view.figure, *view.remarks)
            for text in (view.figure, *view.remarks):
                assert text in shown
                assert text in table(gateway)
            for remark in view.remarks:
                await expect(page.locator("#detail .remark").first).to_contain_text(remark)
        for item in gateway.service.attention.items:
            await expect(page.locator("#queue")).to_contain_text(item.reason)
            assert item.reason in table(gateway)
            await screen.shows(item.reason)


async def test_page_lists_pins_in_the_words_of_the_command(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    pins = [{**pin("p1", "ada"), "text": "Answer in German."}, {**pin("p2", "agent settings"), "text": "Be brief."}]
    async with join("coder") as coder:
        await coder.report(tokens=1, **WINDOW, context={**REPORTED, "pins": [pin("p1", "ada")]})
        await page.get_by_text("Pins (1)").click()
        rows = page.locator("#detail .pins .pin")
        await expect(rows.first).to_contain_text("p1, p1000000")
        asked = (await coder.received(kinds.PARTICIPANT_REQUEST_STATUS))["id"]
        await coder.report(to=["ada"], about=[asked], pins=pins)
        for at, one in enumerate(pins):
            await expect(rows.nth(at)).to_contain_text(str(one["text"]))
            await expect(rows.nth(at)).to_contain_text(words.pin(PinReport.model_validate(one)))
        await expect(rows.nth(0).get_by_role("button", name="Remove pin p1")).to_be_visible()
        await expect(rows.nth(1).get_by_role("button")).to_have_count(0)


SAID: Final[list[tuple[str, dict[str, Any], str]]] = [
    (kinds.PARTICIPANT_COMPACT, {}, "ada asked coder to compact"),
    (
        kinds.PARTICIPANT_COMPACT,
        {"target_tokens": 50_000, "reason": "a long review"},
        "ada asked coder to compact to at most 50,000 tokens: a long review",
    ),
    (kinds.PARTICIPANT_COMPACT, {"target_percent": 40}, "ada asked coder to compact to at most 40% of its window"),
    (kinds.PARTICIPANT_FORGET, {"direction": "oldest"}, "ada asked coder to forget half of its messages, the oldest"),
    (kinds.PARTICIPANT_FORGET, {"direction": "newest", "entries": 1}, "ada asked coder to forget its newest 1 message"),
    (kinds.PARTICIPANT_CLEAR, {}, "ada asked coder to clear its history"),
    (kinds.PARTICIPANT_PIN, {"text": "Be brief."}, "ada asked coder to pin “Be brief.”"),
    (kinds.PARTICIPANT_UNPIN, {"pin": "p1"}, "ada asked coder to remove the pin “p1”"),
    (kinds.PARTICIPANT_UNDO, {}, "ada asked coder to undo its last compaction"),
    (kinds.PARTICIPANT_UNDO, {"number": 3}, "ada asked coder to undo compaction 3"),
    (kinds.PARTICIPANT_PAUSE, {"timeout_seconds": 90}, "ada asked coder to pause for 1 min"),
    (kinds.PARTICIPANT_RESUME, {}, "ada asked coder to resume"),
    (kinds.PARTICIPANT_RESTART, {}, "ada asked coder to start again with an empty history"),
    (kinds.REASONING_CANCEL, {"reason": "enough"}, "ada cancelled the turn of coder: enough"),
    (
        kinds.CAPABILITY_GRANT,
        {"recipient": "eve", "capabilities": [{"kind": "chat/*"}]},
        "ada granted capabilities to eve",
    ),
    (
        kinds.CAPABILITY_REVOKE,
        {"recipient": "eve", "capabilities": [{"kind": "chat/*"}], "reason": "done"},
        "ada revoked capabilities of eve: done",
    ),
    (kinds.SPACE_KICK, {"participant_id": "eve"}, "ada removed eve"),
]


async def test_page_terminal_and_line_chat_word_requests_and_changes_alike(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    page, chat = await open_dashboard(), TypedChat("ada")
    async with join("ada") as ada, join("coder"), terminal_application(gateway) as screen:
        for kind, payload, text in SAID:
            to = [] if kind.startswith(("capability/", "space/")) else ["coder"]
            await ada.send_envelope(kind, payload, to=to)
            headers = {"id": "x", "ts": "", "from": "ada", "to": to, "kind": kind, "payload": payload}
            assert chat.receive(Envelope.model_validate(headers)) == f"* {text}"
            await expect(page.locator(".entry.note").get_by_text(text, exact=True).last).to_be_visible()
            await screen.shows(text)


async def test_page_terminal_and_table_group_alike(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer, join("eve"), terminal_application(gateway) as screen:
        await coder.report(tokens=410, max_tokens=1_000, context={**REPORTED, "model": "one"})
        await writer.report(tokens=723, max_tokens=1_000, context={**REPORTED, "basis": "projected", "model": "one"})
        await page.locator("#participants").get_by_text("~723 of").wait_for()
        await screen.shows("723 of 1,000 projected")
        await gateway.service.attention.refresh_views()
        await screen.pilot.press("f2")
        for by in ("role", "model", "state"):
            groups = grouped(views_in(gateway), by)
            await page.get_by_label("Group", exact=True).select_option(by)
            await expect(page.locator(".group-name")).to_have_text([f"{one.name}{one.about}" for one in groups])
            await screen.pilot.press("g")
            await screen.shows(*(one.title for one in groups))
            printed = table(gateway, by)
            for one in groups:  # the table has no row for people, and counts them all the same
                assert (one.title in printed) == any(row.has_context for row in one.rows)
        await page.get_by_label("Group", exact=True).select_option("model")
        await expect(page.locator(".group-name").first).to_have_text("one2, ~57% full")
        options = await page.locator("#group option").evaluate_all("all => all.map((one) => one.value)")
        assert {*options} == {"none", *GROUPINGS}


async def test_page_filters_as_the_view_says(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    rows = page.locator("#participants [role=option]")
    async with join("coder") as coder, join("writer") as writer:
        await coder.report(tokens=410, max_tokens=1_000, context=REPORTED)
        await writer.report(tokens=990, max_tokens=1_000, context={**REPORTED, "level": "near_limit", "severity": 3})
        await page.locator("#participants").get_by_text("990 of").wait_for()
        await gateway.service.attention.refresh_views()
        for name, label in FILTER_WORDS.items():
            await page.get_by_label("Show", exact=True).select_option(label=label)
            wanted = [one.id for one in views_in(gateway) if name in one.filters]
            await expect(rows).to_have_count(len(wanted))
            assert {*await rows.evaluate_all("all => all.map((one) => one.dataset.id)")} == {*wanted}
            assert wanted or name == "attention"


async def test_page_and_terminal_write_durations_alike(sign_in_page: Page) -> None:
    shown = await sign_in_page.evaluate(
        """async (all) => {
          const { span } = await import("/dashboard/text.js");
          return all.map((one) => span(1000 * one));
        }""",
        [*DURATIONS],
    )
    assert shown == [span(one) for one in DURATIONS]


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
    chat, answer = TypedChat("ada"), page.get_by_role("log").locator(".answer").last
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
