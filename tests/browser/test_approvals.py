"""A person approves on the page what the page shows: nothing is cut without a mark, and nothing is invisible."""

import re
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mew_board.visible import visible
from mew_protocol import kinds
from mew_protocol.codec import read_draft
from mew_protocol.ids import ParticipantId
from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.proposals import MAX_UNDECIDED
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from playwright.async_api import Locator, Page, expect

from tests.browser.conftest import Join, OpenDashboard, Tab
from tests.support.waiting import PATIENCE_SECONDS

PLACES = ["#queue .item", "#messages .proposal"]
"""Where a proposal is decided about."""


def call(tool: str = "run", **arguments: Any) -> dict[str, Any]:
    """A proposed call."""
    return {"method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def approve(place: Locator) -> Locator:
    """The button that approves."""
    return place.get_by_role("button", name="Approve")


async def marks(place: Locator) -> list[str]:
    """What is marked as invisible or misleading, in order."""
    script = "nodes => nodes.map((one) => one.dataset.code ?? one.textContent)"
    found: list[str] = await place.locator(".odd").evaluate_all(script)
    return found


@pytest.mark.parametrize("width", [360, 700, 1280, 1920])
async def test_blanks_and_lines_hide_nothing_that_is_approved(
    open_dashboard: OpenDashboard, join: Join, tab: Tab, width: int
) -> None:
    await tab.page.set_viewport_size({"width": width, "height": 800})
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as files:
        lines = "\n".join(f"line {number}" for number in range(500))
        for place in PLACES:
            code = f"# {place}\nimport os{' ' * 500}; os.system('first')\n{lines}\n{'a' * 9_000}; os.system('last')"
            await coder.send_envelope(kinds.MCP_PROPOSAL, call(code=code), to=["writer"])
            await page.locator(PLACES[0]).wait_for()  # both places need the gateway's list
            shown = page.locator(place).filter(has_text=f"# {place}")
            await expect(shown).to_contain_text("os.system('first')")
            await expect(shown.locator(".odd").first).to_have_text("·×500")
            await expect(shown).not_to_contain_text("os.system('last')")
            await expect(shown.locator(".cut-mark")).to_contain_text("more characters in 4")
            await expect(approve(shown)).to_be_disabled()
            await expect(shown).to_contain_text("Open the whole call before you approve it.")
            await shown.locator(".cut-mark").click()
            await expect(shown).to_contain_text("line 499")
            await expect(shown).to_contain_text("os.system('last')")
            await expect(shown.locator(".cut-mark")).to_have_count(0)
            await expect(shown).to_be_visible()
            widths = await page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert widths[0] == widths[1] == width
            assert await _unreachable(shown) == []
            await approve(shown).click()
            assert (await files.received(kinds.MCP_REQUEST))["payload"]["params"]["arguments"] == {"code": code}
            await expect(page.locator(PLACES[0])).to_have_count(0)


async def _unreachable(place: Locator) -> list[str]:
    """The parts of a proposal that do not show all of themselves."""
    found: list[str] = await place.locator(":is(pre, code, dt, .diff-line)").evaluate_all(
        "nodes => nodes.filter((one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0"
        " || one.scrollHeight > one.clientHeight + 1 && one.clientHeight > 0).map((one) => one.className)"
    )
    return found


async def test_invisible_and_misleading_characters_are_marked(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        text = "if user == 'аdmin\u202e':  \r\nok\u200bay\u00a0= раypal – fine\t\nо\u0338 =\u0338 ｒm"
        await coder.send_envelope(
            kinds.MCP_PROPOSAL, call("ru\u00adn", code=text, **{"pat\u2060h": " a "}), to=["writer"]
        )
        for place in PLACES:
            shown = page.locator(place)
            await shown.first.wait_for()
            assert await marks(shown) == [
                *("U+00AD", "U+0430", "U+202E", "··", "U+000D", "U+200B", "U+00A0", "U+0440 U+0430", "–", "→"),
                *("U+043E", "U+0338", "U+FF52", "U+2060", "·"),
            ]
            await expect(shown.locator("[title^='U+0430']").first).to_have_text("а")


async def test_every_part_of_a_call_is_shown(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        edits = [{"old_string": "a\nb", "new_string": "a\nc", "replace_all": True, "file": "/etc/passwd"}]
        proposed = call("edit", edits=edits, note="")
        proposed["params"]["_meta"] = {"run_as": "root"}
        await coder.send_envelope(kinds.MCP_PROPOSAL, proposed, to=["writer", "eve"])
        for place in PLACES:
            shown = page.locator(place)
            await expect(shown).to_contain_text("edit on writer, eve")
            for words in ("/etc/passwd", "replace_all", "true", "run_as", "root", "- b", "+ c", "empty"):
                await expect(shown).to_contain_text(words)
            await expect(approve(shown)).to_be_enabled()


async def test_a_method_that_is_no_tool_says_so(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.send_envelope(kinds.MCP_PROPOSAL, {"method": "edit", "params": {"name": "x"}}, to=["writer"])
        for place in PLACES:
            await expect(page.locator(place)).to_contain_text("edit (a method, not a tool) on writer")


async def test_a_call_opened_in_one_place_is_open_in_the_other(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.send_envelope(kinds.MCP_PROPOSAL, call(code="line\n" * 200), to=["writer"])
        queue, said = (page.locator(place) for place in PLACES)
        await expect(approve(queue)).to_be_disabled()
        await expect(queue.get_by_role("button", name="Always allow this tool")).to_be_disabled()
        await expect(queue.get_by_role("button", name="Reject…")).to_be_enabled()
        await said.locator(".cut-mark").click()
        await expect(approve(said)).to_be_enabled()
        await expect(approve(queue)).to_be_enabled()


async def test_many_marks_are_fast_and_stay_visible(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.send_envelope(kinds.MCP_PROPOSAL, call(code="a\u200b" * 10_000), to=["writer"])
        shown = page.locator(PLACES[1])
        await shown.locator(".cut-mark").click()
        await expect(shown).to_contain_text("<U+200B>a<U+200B>")
        assert await shown.locator(".odd").count() == 1_000
        await expect(approve(shown)).to_be_enabled()


async def test_page_and_terminal_mark_the_same_characters(sign_in_page: Page) -> None:
    texts = [
        "аdmin раypal",
        "Привет, größer 数",
        "a – b ‘c’",
        "ok\u200bay\u202e",
        "=\u0338 ｒm ѕсоре",
        "e\u0323\u0302",
    ]
    script = """async (texts) => {
        const { visiblePieces } = await import("/dashboard/visible.js");
        const odd = (text) => visiblePieces(text).filter((one) => one.kind && one.kind !== "blank");
        return texts.map((text) => odd(text).flatMap((one) => one.codes.split(" ")));
    }"""
    marked = await sign_in_page.evaluate(script, texts)
    assert marked == [re.findall(r"<(U\+[0-9A-F]+)>", visible(one)) for one in texts]


@pytest.mark.parametrize("place", PLACES)
async def test_an_edit_is_a_diff_by_line(open_dashboard: OpenDashboard, join: Join, place: str) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        before = [f"line {number}" for number in range(450)]
        after = ["new" if at in (3, 200, 201, 440) else line for at, line in enumerate(before)]
        texts = {"old_string": "\n".join(before), "new_string": "\n".join(after)}
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("edit", path="a.py", **texts), to=["writer"])
        shown = page.locator(place)
        await expect(shown.locator(".diff-title")).to_have_text("+4 −4")
        if await shown.locator(".cut-mark").count():
            await shown.locator(".cut-mark").click()
        removed = await shown.locator(".diff-line[data-mark='-']").all_inner_texts()
        assert "".join(removed).split("\n")[:4] == ["- line 3", "- line 200", "- line 201", "- line 440"]
        await expect(shown.locator(".diff-line[data-mark='@']")).to_have_count(3)
        await expect(approve(shown)).to_be_enabled()


async def test_a_decided_edit_is_a_diff_after_a_reload(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        texts = {"old_string": "one\ntwo", "new_string": "one\nthree"}
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("edit", path="a.py", **texts), to=["writer"])
        await page.locator("#messages").get_by_role("button", name="Reject").click()
        await coder.received(kinds.MCP_REJECT)
        await page.reload()
        await page.locator("#messages summary").last.click()
        await expect(page.locator("#messages .diff-title")).to_have_text("+1 −1")
        await expect(page.locator("#messages .diff-line[data-mark='+']")).to_have_text("+ three\n")


PRESS_WHEN_ONE_IS_LEFT = """() => {
    const list = document.querySelector("#queue-items");
    window.pressed = new Promise((resolve) => new MutationObserver((_, observer) => {
        if (list.querySelectorAll(".item").length !== 1) return;
        observer.disconnect();
        list.querySelector("[data-approves]").click();
        resolve(performance.now());
    }).observe(list, { childList: true }));
}"""


async def test_a_click_meant_for_a_withdrawn_proposal_approves_no_other(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as files:
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("list_files"), to=["writer"])
        first = await coder.received(kinds.MCP_PROPOSAL)
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("delete_files"), to=["writer"])
        queue = page.locator("#queue .item")
        await expect(queue).to_have_count(2)
        await page.evaluate(PRESS_WHEN_ONE_IS_LEFT)
        await coder.send_envelope(kinds.MCP_WITHDRAW, {"reason": "x"}, to=["writer"], about=[first["id"]])
        pressed = await page.evaluate("window.pressed")
        await expect(queue).to_contain_text("Not sent: another item was here a moment ago.")
        await page.wait_for_function("(at) => performance.now() > at + 1_000", arg=pressed)
        await approve(queue).click()
        request = await files.received(kinds.MCP_REQUEST)
        assert request["payload"]["params"]["name"] == "delete_files"


@pytest.mark.parametrize("place", PLACES)
async def test_a_press_is_no_less_a_click_when_news_arrives_before_its_release(
    open_dashboard: OpenDashboard, join: Join, place: str
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as files:
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("first"), to=["writer"])
        await page.locator(PLACES[0]).wait_for()
        await approve(page.locator(place)).hover()
        await page.mouse.down()
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("second"), to=["writer"])
        await expect(page).to_have_title(re.compile(r"^\(2\)"))
        await page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        await expect(page.locator(place)).to_have_count(1)
        await page.mouse.up()
        assert (await files.received(kinds.MCP_REQUEST))["payload"]["params"]["name"] == "first"
        await expect(page.locator(PLACES[1])).to_have_count(2)


async def test_typing_is_no_press(sign_in_page: Page) -> None:
    await sign_in_page.get_by_label("Space", exact=True).focus()
    await sign_in_page.keyboard.down("x")
    is_pressed = 'import("/dashboard/dom.js").then((dom) => dom.isPressed())'
    assert await sign_in_page.evaluate(is_pressed) is False
    await sign_in_page.keyboard.up("x")
    await sign_in_page.get_by_role("button", name="Sign in").focus()
    await sign_in_page.keyboard.down("Shift")
    assert await sign_in_page.evaluate(is_pressed) is True
    await sign_in_page.keyboard.up("Shift")
    await sign_in_page.get_by_role("heading", name="Sign in").click()
    assert await sign_in_page.evaluate(is_pressed) is False


NOT_YET_OFFERED = """async () => {
    const { Conversation } = await import("/dashboard/conversation.js");
    const { ConversationView } = await import("/dashboard/conversation_view.js");
    const nodes = Object.fromEntries(["list", "empty", "newest"].map((name) => [name, document.createElement("div")]));
    const conversation = new Conversation("ada");
    let isOffered = false;
    let nowMs = Date.now();
    const view = new ConversationView(nodes, conversation, { mayDecide: () => true, mayApprove: () => isOffered });
    const payload = { method: "tools/call", params: { name: "write", arguments: {} } };
    const ts = new Date().toISOString();
    conversation.receive({ id: "1", kind: "mcp/proposal", from: "coder", to: ["writer"], ts, payload });
    const drawn = () => {
        view.draw((nowMs += 60_000));
        const button = nodes.list.querySelector("[data-decision=approve]");
        return [button.disabled, button.parentElement.textContent];
    };
    const before = drawn();
    isOffered = true;
    view.redrawProposals();
    return [...before, ...drawn()];
}"""


async def test_approve_waits_until_the_gateway_offers_the_approval(sign_in_page: Page) -> None:
    is_disabled, said, is_still_disabled, said_then = await sign_in_page.evaluate(NOT_YET_OFFERED)
    assert (is_disabled, is_still_disabled) == (True, False)
    assert said == "ApproveRejectNot in your queue (yet), so it cannot be approved here."
    assert said_then == "ApproveReject"


REJECTED_BY_ALL = """async () => {
    const { Conversation } = await import("/dashboard/conversation.js");
    const conversation = new Conversation("ada");
    const about = { ts: new Date().toISOString(), correlation_id: ["1"] };
    const payload = { method: "tools/call", params: { name: "write", arguments: {} } };
    conversation.receive({ id: "1", kind: "mcp/proposal", from: "coder", to: ["writer"], ts: about.ts, payload });
    const [rejected, ended] = [{ text: "rejected by writer: no" }, { text: "withdrawn: why" }];
    conversation.receive({ ...about, id: "2", kind: "mcp/reject", from: "writer", said: rejected });
    const [proposal] = conversation.entries.values();
    const before = proposal.state;
    conversation.receive({ ...about, id: "3", kind: "mcp/withdraw", from: "system:gateway", said: ended });
    return [before, proposal.state, proposal.words];
}"""


async def test_a_proposal_that_all_have_rejected_ends_with_the_reasons(sign_in_page: Page) -> None:
    before, after, words = await sign_in_page.evaluate(REJECTED_BY_ALL)
    assert (before, after) == ("open", "withdrawn")
    assert words == "rejected by writer: no; withdrawn: why"


TWO_AT_ONCE = """async (kind) => {
    const { Conversation } = await import("/dashboard/conversation.js");
    const conversation = new Conversation("ada");
    const ts = new Date().toISOString();
    const payload = { method: "tools/call", params: { name: "write", arguments: {} } };
    const made = { kind: "mcp/proposal", from: "coder", to: ["writer"], ts, payload };
    for (const id of ["1", "2"]) conversation.receive({ ...made, id });
    const about = { id: "3", ts, kind, from: "writer", correlation_id: ["1", "2"] };
    conversation.receive({ ...about, to: ["writer"], payload: kind === "mcp/request" ? payload : { result: {} } });
    return [...conversation.entries.values()].map((one) => one.state);
}"""


@pytest.mark.parametrize("kind", [kinds.MCP_REQUEST, kinds.MCP_RESPONSE])
async def test_one_approval_ends_all_proposals_that_it_names(sign_in_page: Page, kind: str) -> None:
    assert await sign_in_page.evaluate(TWO_AT_ONCE, kind) == ["approved", "approved"]


async def test_a_proposal_on_an_older_page_is_open_only_if_it_waits(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join
) -> None:
    def receive(kind: str, payload: dict[str, Any], **headers: Any) -> None:
        draft = read_draft({"kind": kind, "payload": payload, **headers})
        assert gateway.service.receive(None, ParticipantId("coder"), draft).receipt.accepted is not None

    for name in ("kept", "dropped"):
        receive(kinds.MCP_PROPOSAL, call(name), id=name, to=["writer"])
    for number in range(600):
        receive(kinds.CHAT, {"text": f"message {number}"})
        if number == 300:
            receive(kinds.MCP_WITHDRAW, {"reason": "x"}, correlation_id=["dropped"])
    page = await open_dashboard()
    async with join("coder"):
        await page.get_by_role("button", name="Load older messages").wait_for()
        await page.locator("#messages").evaluate("list => { list.scrollTop = 0; }")
        shown = page.locator("#messages .proposal")
        await expect(shown.filter(has_text="dropped")).to_contain_text("no longer open")
        await expect(shown.filter(has_text="kept")).to_contain_text("waits for approval")


async def test_a_page_that_opens_shows_no_proposal_as_open_that_the_gateway_dropped(
    gateway: RunningGateway, open_dashboard: OpenDashboard
) -> None:
    for number in range(MAX_UNDECIDED + 1):
        draft = read_draft({"kind": kinds.MCP_PROPOSAL, "payload": call(f"tool {number}"), "to": ["writer"]})
        assert gateway.service.receive(None, ParticipantId("coder"), draft).receipt.accepted is not None
    page = await open_dashboard()
    shown = page.locator("#messages .proposal")
    await expect(shown).to_have_count(MAX_UNDECIDED + 1)
    await expect(shown.first).to_contain_text("no longer open")
    await expect(shown.nth(1)).to_contain_text("waits for approval")


async def test_a_proposal_that_ended_while_the_page_was_offline_is_not_open(config: SpaceConfig, tab: Tab) -> None:
    page = tab.page
    draft = read_draft({"kind": kinds.MCP_PROPOSAL, "payload": call("write"), "to": ["writer"]})
    shown = page.locator("#messages .proposal")
    async with serve_gateway(config) as first:
        await page.goto(f"{first.url}/dashboard#token={first.token_of('ada')}&space=review&participant=ada")
        await page.get_by_text("live", exact=True).wait_for()
        first.service.receive(None, ParticipantId("coder"), draft)
        await expect(shown).to_contain_text("waits for approval")
    async with serve_gateway(config, port=first.port, tokens=first.tokens):  # without its history
        await expect(shown).to_contain_text("no longer open")


async def test_one_withdrawal_ends_all_proposals_that_it_names(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder:
        names = []
        for tool in ("list_files", "delete_files"):
            await coder.send_envelope(kinds.MCP_PROPOSAL, call(tool), to=["writer"])
            names.append((await coder.received(kinds.MCP_PROPOSAL))["id"])
        await coder.send_envelope(kinds.MCP_WITHDRAW, {"reason": "x"}, about=names)
        await expect(page.locator("#messages .proposal").filter(has_text="withdrawn")).to_have_count(2)


async def test_words_of_others_do_not_decide_about_a_proposal(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("write"))
        proposal = (await coder.received(kinds.MCP_PROPOSAL))["id"]
        forged = {"result": {"content": [{"type": "text", "text": "forged"}]}}
        await writer.send_envelope(kinds.MCP_RESPONSE, forged, to=["coder"], about=[proposal])
        await writer.send_envelope(kinds.MCP_REQUEST, call("other"), to=["coder"], about=[proposal])
        await writer.send_envelope(kinds.CHAT, {"text": "sent all"})
        await expect(page.locator("#messages")).to_contain_text("sent all")
        shown = page.locator("#messages .proposal")
        await expect(shown).to_contain_text("waits for approval")
        await expect(shown).not_to_contain_text("forged")
        await expect(approve(shown)).to_be_enabled()


async def test_a_proposal_stays_open_when_one_of_several_approvers_rejects_it(
    open_dashboard: OpenDashboard, join: Join
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("write"), to=["writer"])
        proposal = (await writer.received(kinds.MCP_PROPOSAL))["id"]
        await writer.send_envelope(kinds.MCP_REJECT, {"reason": "busy"}, to=["coder"], about=[proposal])
        shown = page.locator("#messages .proposal")
        await expect(shown).to_contain_text("waits for approval; rejected by writer: busy")
        await approve(shown).click()
        await expect(shown).to_contain_text("approved by ada")


async def test_an_answer_without_a_request_closes_a_proposal(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("write"), to=["writer"])
        proposal = (await writer.received(kinds.MCP_PROPOSAL))["id"]
        shown = page.locator("#messages .proposal")
        await expect(approve(shown)).to_be_enabled()
        result = {"result": {"content": [{"type": "text", "text": "written"}]}}
        await writer.send_envelope(kinds.MCP_RESPONSE, result, to=["coder"], about=[proposal])
        await expect(shown).to_contain_text("approved by writer")
        await expect(shown.get_by_role("button", name=re.compile("Approve|Reject"))).to_have_count(0)
        await expect(shown).to_contain_text("written")


async def test_any_rejection_closes_a_permission(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("write"), to=["coder"])
        proposal = (await writer.received(kinds.MCP_PROPOSAL))["id"]
        await writer.send_envelope(kinds.MCP_REJECT, {"reason": "no"}, to=["coder"], about=[proposal])
        shown = page.locator("#messages .proposal")
        await expect(shown).to_contain_text("coder")
        await expect(shown.locator(".state")).to_have_text("rejected by writer: no")


async def _tab_to(page: Page, wanted: Locator, most: int) -> None:
    """Press Tab until the wanted element has the focus."""
    for _ in range(most):
        await page.keyboard.press("Tab")
        if await wanted.and_(page.locator(":focus")).count():  # in one step: it may be drawn again at any time
            return
    raise AssertionError(f"{wanted} has no focus after {most} presses of Tab")


async def _has_focus(page: Page, place: str) -> bool:
    """Whether the first element of a place has the focus. A locator's element may be drawn again meanwhile."""
    return bool(await page.evaluate("(one) => document.querySelector(one).contains(document.activeElement)", place))


@pytest.mark.parametrize("place", PLACES)
async def test_a_cut_call_is_opened_and_approved_by_keyboard(
    open_dashboard: OpenDashboard, join: Join, place: str
) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as files:
        before = [f"line {number}" for number in range(450)]
        texts = {"old_string": "\n".join(before), "new_string": "\n".join(f"new {one}" for one in before)}
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("edit", path="a.py", **texts), to=["writer"])
        shown = page.locator(place)
        await expect(approve(shown)).to_be_disabled()
        await _tab_to(page, shown.locator(".cut-mark"), 40)
        await page.keyboard.press("Enter")
        await expect(shown).to_contain_text("new line 449")
        assert await _has_focus(page, place)
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("edit", path="b.py"), to=["writer"])
        await expect(page.locator("#queue-count")).to_have_text("2")
        assert await _has_focus(page, place), "what arrives takes no focus"
        shown = shown.first
        await expect(approve(shown)).to_be_enabled()
        await _tab_to(page, approve(shown), 2)
        await page.keyboard.press("Enter")
        assert (await files.received(kinds.MCP_REQUEST))["payload"]["params"]["arguments"] == {"path": "a.py", **texts}


async def test_every_cut_in_the_conversation_is_opened_by_keyboard(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    async with join("coder") as coder, join("writer") as writer:
        await coder.send_envelope(kinds.CHAT, {"text": f"{'word ' * 9_000}end"})
        await coder.send_envelope(kinds.MCP_REQUEST, call(code="line\n" * 900 + "last line"), to=["writer"])
        chat, tool = page.locator("#messages .chat"), page.locator("#messages .entry:has(.tool)")
        await tool.wait_for()
        await _tab_to(page, chat.get_by_role("button", name="Show all"), 40)
        await page.keyboard.press("Enter")
        await expect(chat).to_contain_text("word end")
        await _tab_to(page, tool.locator("summary"), 3)
        await page.keyboard.press("Enter")
        await _tab_to(page, tool.locator(".cut-mark"), 2)
        await page.keyboard.press("Enter")
        await expect(tool).to_contain_text("last line")
        await expect(tool.locator(".cut-mark")).to_have_count(0)
        assert await _has_focus(page, "#messages .entry:has(.tool)")
        del writer


async def test_on_a_phone_an_approval_leaves_two_thirds_of_the_screen(
    open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    await tab.page.set_viewport_size({"width": 390, "height": 844})
    page = await open_dashboard()
    async with join("coder") as coder, join("writer"):
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("edit", text="line\n" * 20), to=["writer"])
        queue = page.locator("#queue")
        item = queue.locator(".item-proposal")
        await expect(item.locator(".call")).to_be_in_viewport(ratio=1)
        for name in ("Approve", "Reject…"):
            await expect(item.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
        box = await queue.bounding_box()
        assert box is not None
        assert box["height"] < 844 / 3


async def box_of(button: Locator) -> object:
    """Where a button is. Its entry may just be drawn once more."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while (found := await button.bounding_box()) is None:
            await anyio.lowlevel.checkpoint()
        return found


async def test_messages_move_no_button_under_the_pointer(open_dashboard: OpenDashboard, join: Join) -> None:
    page = await open_dashboard()
    conversation = page.locator("#messages")
    async with join("coder") as coder:
        for number in range(40):
            await coder.send_envelope(kinds.CHAT, {"text": f"Line {number}.", "format": "plain"})
        await coder.send_envelope(kinds.MCP_PROPOSAL, call("list_files"), to=["writer"])
        button = conversation.get_by_role("button", name="Approve")
        await expect(page.locator("#queue .item")).to_have_count(1)
        await button.hover()
        before = await box_of(button)
        await coder.send_envelope(kinds.CHAT, {"text": "One more.\n\n" * 5, "format": "plain"})
        await expect(conversation).to_contain_text("One more.")
        await expect(page.get_by_role("button", name="Newest")).to_be_visible()
        assert await box_of(button) == before
        await page.mouse.move(0, 0)
        await coder.send_envelope(kinds.CHAT, {"text": "The end.", "format": "plain"})
        await expect(conversation.get_by_text("The end.")).to_be_in_viewport()
