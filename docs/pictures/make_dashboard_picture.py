"""Take docs/pictures/dashboard.png: the real page and a real gateway, with members that follow a script.

    python docs/pictures/make_dashboard_picture.py [--out FILE] [--size 1280x800] [--dark] [--whole]

Needs playwright and a Chromium (`/usr/bin/chromium`, or set CHROMIUM). The figures are made up; the
envelopes are those that agents send.
"""

import argparse
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
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
  ada: {capabilities: [{kind: "*"}, {kind: "participant/*"}]}
  coder: {command: "true", capabilities: [{kind: "*"}, {kind: "participant/*"}]}
  writer: {command: "true", capabilities: [{kind: "*"}, {kind: "participant/*"}]}
  local-llm: {command: "true", capabilities: [{kind: "*"}, {kind: "participant/*"}]}
  files: {command: "true"}
"""

CHROMIUM_ARGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")

Parts = Sequence[tuple[str, int]]


def wire_time(*, seconds_ago: float = 0) -> str:
    """A timestamp of the wire, some seconds ago."""
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat()


class Member:
    """A participant that follows the script."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, kind: str, payload: dict[str, Any], to: Sequence[str] = (), about: Sequence[str] = ()) -> None:
        """Send one envelope."""
        envelope = {"kind": kind, "to": list(to), "correlation_id": list(about), "payload": payload}
        await self.socket.send(json.dumps({key: value for key, value in envelope.items() if value}))

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
    cut = LastCompaction(
        at=wire_time(seconds_ago=128),
        trigger="threshold",
        tokens_before=115_890,
        tokens_after=44_524,
        freed_tokens=71_366,
        freed_gross_tokens=77_570,
        summary_tokens=6_204,
        freed_messages=84,
        basis="projected",
    )
    before = (31_020, 44_871, 52_340, 71_902, 83_116, 97_544, 108_002, 115_890)
    after = (44_524, 53_790, 61_377, 78_208, 90_455, 104_119, 111_630)
    for index, tokens in enumerate(before):
        await coder.report(reported(tokens, 128_000, word="active", messages=30 + 9 * index, model="gpt-4o"))
    for index, tokens in enumerate(after):
        status = reported(
            tokens, 128_000, word="active", messages=31 + 7 * index, model="gpt-4o", compactions=1, last_compaction=cut
        )
        await coder.report(status)
    await coder.report(
        reported(
            116_412,
            128_000,
            word="near_limit",
            messages=97,
            parts=CODER_PARTS,
            seconds_ago=3,
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


async def send_chats(ada: Member, coder: Member, writer: Member) -> None:
    """Send the chats of the conversation."""
    chats = (
        (
            ada,
            "coder",
            "Please review the gateway's connection.py. What happens if a socket closes early?",
        ),
        (
            coder,
            "ada",
            "A socket that closes before its join frame leaves its buffer behind. I added a test that shows it.",
        ),
        (writer, "coder", "Tell me when the test passes. I need one sentence for the changelog."),
        (coder, "writer", "“A connection that ends before it joins no longer keeps its buffer.”"),
        (ada, "writer", "You need room for the whole guide. Compact first, then start."),
    )
    for sender, to, text in chats:
        await sender.send(kinds.CHAT, {"text": text, "format": "plain"}, to=(to,))
        # Wait for the echo: each member has its own socket, and the next chat could overtake this one.
        while (await sender.received(kinds.CHAT))["payload"]["text"] != text:
            continue


async def take(page: Page, gateway: RunningGateway, out: Path, *, whole: bool) -> None:
    """Play the script and take the picture."""
    fragment = f"space=review&participant=ada&token={gateway.token_of('ada')}"
    await page.goto(f"{gateway.url}/dashboard#{fragment}")
    await page.get_by_text("live", exact=True).wait_for()
    async with (
        member_of(gateway, "ada") as ada,
        member_of(gateway, "coder") as coder,
        member_of(gateway, "writer") as writer,
        member_of(gateway, "local-llm") as local,
        member_of(gateway, "files"),
    ):
        await send_reports(coder, writer, local)
        await send_chats(ada, coder, writer)
        await page.get_by_role("button", name="Compact writer").click()
        asked = await writer.received(kinds.PARTICIPANT_COMPACT)
        busy = reported(
            25_215,
            32_768,
            word="compacting",
            messages=36,
            parts=WRITER_PARTS,
            seconds_ago=24,
            model="qwen2.5-14b-instruct",
            max_tokens_basis="loaded",
            turns_to_compaction=2,
        )
        await writer.send(
            kinds.PARTICIPANT_STATUS, busy.model_dump(mode="json", exclude_none=True), about=(str(asked["id"]),)
        )
        await page.locator(".word", has_text="compacting").wait_for()
        await page.get_by_role("log").get_by_text("You need room").wait_for()
        await page.locator("h1").click()
        await page.screenshot(path=out, full_page=whole, animations="disabled")


async def main(out: Path, width: int, height: int, *, dark: bool, whole: bool) -> None:
    """Start the gateway and a browser, take the picture, stop both."""
    async with serve_gateway(parse_space(SPACE)) as gateway, async_playwright() as playwright:
        executable = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = await playwright.chromium.launch(executable_path=executable, args=list(CHROMIUM_ARGS))
        page = await browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", locale="en-GB"
        )
        await take(page, gateway, out, whole=whole)
        await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("dashboard.png"))
    parser.add_argument("--size", default="1280x800", help="WIDTHxHEIGHT of the window in pixels")
    parser.add_argument("--dark", action="store_true", help="dark colour scheme")
    parser.add_argument("--whole", action="store_true", help="the whole page instead of the first screen")
    options = parser.parse_args()
    wide, high = (int(side) for side in options.size.split("x"))
    anyio.run(lambda: main(options.out, wide, high, dark=options.dark, whole=options.whole))
