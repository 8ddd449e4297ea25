"""Take the pictures of the dashboard: the real page and a real gateway, with members that follow a script.

    python docs/pictures/make_dashboard_picture.py [--folder FOLDER]

Writes dashboard.png, dashboard-dark.png and dashboard-phone.png. Needs playwright and a Chromium (`/usr/bin/chromium`,
or set CHROMIUM). The figures are made up; the envelopes are those that agents send.
"""

import argparse
import itertools
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
from mew_protocol import kinds
from mew_protocol.context_report import BreakdownPart, ContextReport, LastCompaction, LastReported
from mew_protocol.join import join_frame
from mew_protocol.payloads.participant import Status
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from playwright.async_api import Page, async_playwright
from websockets.asyncio.client import ClientConnection, connect

SPACE = """
space: {id: review, name: Review room}
participants:
  ada: {capabilities: [{kind: "**"}]}
  coder: {command: "true", capabilities: [{kind: "**"}]}
  writer: {command: "true", capabilities: [{kind: "**"}]}
  local-llm: {command: "true", capabilities: [{kind: "**"}]}
  files: {command: "true", capabilities: [{kind: "**"}]}
"""

CHROMIUM_ARGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")

_NUMBERS = itertools.count(1)

PACE_SECONDS = 1.2
"""Between two reports: the gateway keeps one a second."""

Parts = Sequence[tuple[str, int]]


def wire_time(*, seconds_ago: float = 0) -> str:
    """A timestamp of the wire, some seconds ago."""
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat()


class Member:
    """A participant that follows the script."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, kind: str, payload: dict[str, Any], to: Sequence[str] = (), **headers: Any) -> dict[str, Any]:
        """Send one envelope and return its echo."""
        name = f"picture-{next(_NUMBERS)}"
        envelope = {"id": name, "kind": kind, "to": list(to), "payload": payload, **headers}
        await self.socket.send(json.dumps({key: value for key, value in envelope.items() if value}))
        # Each member has its own socket: without the wait the next envelope could overtake this one.
        while (echo := await self.received(kind))["id"] != name:
            continue
        return echo

    async def report(self, status: Status) -> None:
        """Broadcast a status."""
        await self.send(kinds.PARTICIPANT_STATUS, status.model_dump(mode="json", exclude_none=True))

    async def received(self, kind: str) -> dict[str, Any]:
        """Return the next envelope of a kind."""
        async for frame in self.socket:
            envelope: dict[str, Any] = json.loads(frame)
            if envelope.get("kind") == kind:
                return envelope
        raise RuntimeError(f"the gateway closed before any {kind} came")


@asynccontextmanager
async def member_of(gateway: RunningGateway, participant: str) -> AsyncIterator[Member]:
    """Join as a participant of the space."""
    async with connect(gateway.ws_url) as socket:
        frame = join_frame(space="review", participant=participant, token=gateway.token_of(participant))
        await socket.send(json.dumps(frame))
        member = Member(socket)
        await member.received(kinds.SYSTEM_WELCOME)
        yield member


def reported(tokens: int, window: int, *, word: str, messages: int, parts: Parts = (), **more: Any) -> Status:
    """A status right after a call whose provider reported its usage."""
    near = tokens * 10 >= window * 9
    context = ContextReport(
        basis="reported",
        level="near_limit" if near else "healthy",
        severity=2 if near else 0,
        policy="mew",
        compact_at_tokens=-(-window * 9 // 10),
        measured_at=wire_time(seconds_ago=more.pop("seconds_ago", 0)),
        call_id="call",
        breakdown=tuple(
            BreakdownPart(part=part, tokens=size, basis="projected" if part == "summary" else "exact")
            for part, size in parts
        )
        or None,
        **more,
    )
    return Status(tokens=tokens, max_tokens=window, messages_in_context=messages, status=word, context=context)


CODER_PARTS = (
    ("prefix", 3_912),
    ("summary", 6_204),
    ("messages", 41_307),
    ("tool_results", 63_118),
    ("reply", 1_871),
)
WRITER_PARTS = (("prefix", 1_208), ("pins", 940), ("messages", 22_455), ("reply", 612))


async def send_reports(coder: Member, writer: Member, local: Member) -> None:
    """Send the reports before the moment of the picture."""
    before = (31_020, 44_871, 52_340, 71_902, 83_116, 97_544, 108_002, 115_890)
    after = (44_524, 53_790, 61_377, 78_208, 90_455, 104_119, 111_630)
    for index, tokens in enumerate(before):
        await coder.report(reported(tokens, 128_000, word="active", messages=30 + 9 * index, model="gpt-4o"))
        await anyio.sleep(PACE_SECONDS)
    cut = LastCompaction(
        at=wire_time(),
        trigger="threshold",
        tokens_before=115_890,
        tokens_after=44_524,
        freed_tokens=71_366,
        freed_gross_tokens=77_570,
        summary_tokens=6_204,
        freed_messages=84,
        basis="projected",
    )
    for index, tokens in enumerate(after):
        status = reported(
            tokens, 128_000, word="active", messages=31 + 7 * index, model="gpt-4o", compactions=1, last_compaction=cut
        )
        await coder.report(status)
        await anyio.sleep(PACE_SECONDS)
    await coder.report(
        reported(
            116_412,
            128_000,
            word="near_limit",
            messages=97,
            parts=CODER_PARTS,
            seconds_ago=1,
            model="gpt-4o",
            compactions=1,
            last_compaction=cut,
            next_prompt_tokens=117_020,
            next_prompt_basis="projected",
            turns_to_compaction=0,
            tokens_per_turn=11_984,
        )
    )
    for index, tokens in enumerate((4_120, 6_731, 9_904, 14_377, 17_020, 21_966, 25_215)):
        parts = WRITER_PARTS if tokens == 25_215 else ()
        more = {"model": "qwen2.5-14b-instruct", "max_tokens_basis": "loaded", "turns_to_compaction": 2}
        await writer.report(
            reported(tokens, 32_768, word="active", messages=6 + 5 * index, parts=parts, seconds_ago=21, **more)
        )
    unknown = ContextReport(
        basis="unknown",
        reason="usage_unavailable",
        last_reported=LastReported(tokens=5_310, measured_at=wire_time(seconds_ago=190), call_id="call"),
        max_tokens_basis="assumed",
        model="mistral-7b",
        policy="mew",
        compact_at_tokens=115_200,
    )
    await local.report(Status(max_tokens=128_000, messages_in_context=14, status="active", context=unknown))


async def converse(ada: Member, coder: Member, writer: Member, files: Member) -> None:
    """Send the conversation: a question, a turn with a tool call and an answer, and a proposal."""
    text = "Please review `connection.py`. What happens if a socket closes **early**?"
    question = await ada.send(kinds.CHAT, {"text": text}, ("coder",))
    about = [question["id"]]
    start = await coder.send(kinds.REASONING_START, {"message": text}, correlation_id=about)
    read = {"method": "tools/call", "params": {"name": "read_file", "arguments": {"path": "connection.py"}}}
    call = await coder.send(kinds.MCP_REQUEST, read, ("files",), context=start["id"])
    content = {"result": {"content": [{"type": "text", "text": "class Connection: ..."}]}}
    await files.send(kinds.MCP_RESPONSE, content, ("coder",), correlation_id=[call["id"]])
    thought = {"reasoning": "The buffer belongs to the connection, so closing has to clear it.", "message": ""}
    await coder.send(kinds.REASONING_THOUGHT, thought, context=start["id"])
    await coder.send(kinds.REASONING_CONCLUSION, {"message": "done"}, context=start["id"])
    answer = (
        "A socket that closes before its join frame **leaves its buffer behind**:\n\n"
        "```python\nif not self.joined:\n    return  # the buffer stays\n```\n\n"
        "I propose to clear it in `close`."
    )
    await coder.send(kinds.CHAT, {"text": answer}, ("ada",), correlation_id=about)
    change = {"path": "connection.py", "old_string": "    return", "new_string": "    self.buffer.clear()\n    return"}
    proposal = {"method": "tools/call", "params": {"name": "edit_file", "arguments": change}}
    await coder.send(kinds.MCP_PROPOSAL, proposal, ("files",))
    await writer.send(kinds.CHAT, {"text": "I need one sentence for the changelog."}, ("coder",))


async def play(page: Page, gateway: RunningGateway, members: Sequence[Member]) -> None:
    """Play the script in an open page."""
    ada, coder, writer, local, files = members
    await send_reports(coder, writer, local)
    await converse(ada, coder, writer, files)
    row = page.get_by_role("listbox", name="Participants").locator("[data-id=writer]")
    await row.click()
    await page.get_by_role("button", name="Compact: writer").click()
    await page.locator("form.action").get_by_role("button", name="Compact").click()
    asked = await writer.received(kinds.PARTICIPANT_COMPACT)
    more = {"model": "qwen2.5-14b-instruct", "max_tokens_basis": "loaded", "turns_to_compaction": 2}
    busy = reported(25_215, 32_768, word="compacting", messages=36, parts=WRITER_PARTS, seconds_ago=21, **more)
    status = busy.model_dump(mode="json", exclude_none=True)
    await writer.send(kinds.PARTICIPANT_STATUS, status, correlation_id=[asked["id"]])
    await row.get_by_text("compacting").wait_for()
    await page.locator("[data-id=coder]").click()
    await page.locator("#detail .cut").first.wait_for()


async def main(folder: Path) -> None:
    """Start the gateway and a browser, take the pictures, stop both."""
    async with serve_gateway(parse_space(SPACE)) as gateway, async_playwright() as playwright:
        executable = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = await playwright.chromium.launch(executable_path=executable, args=list(CHROMIUM_ARGS))
        page = await browser.new_page(viewport={"width": 1440, "height": 900}, locale="en-GB")
        async with AsyncExitStack() as stack:
            names = ("ada", "coder", "writer", "local-llm", "files")
            members = [await stack.enter_async_context(member_of(gateway, name)) for name in names]
            token = gateway.token_of("ada")
            await page.goto(f"{gateway.url}/dashboard#space=review&participant=ada&token={token}")
            await page.get_by_text("live", exact=True).wait_for()
            await play(page, gateway, members)
            await page.evaluate("document.getElementById('messages').scrollTop = 1e6")
            await page.screenshot(path=folder / "dashboard.png", animations="disabled")
            await page.emulate_media(color_scheme="dark")
            await page.screenshot(path=folder / "dashboard-dark.png", animations="disabled")
            await page.set_viewport_size({"width": 390, "height": 800})
            await page.get_by_role("button", name="Participants", exact=True).click()
            await page.screenshot(path=folder / "dashboard-phone.png", animations="disabled")
        await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    anyio.run(main, parser.parse_args().folder)
