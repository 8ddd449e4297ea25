"""`mew history`, `mew tools` and `mew fit`: past messages, offered tools, and free room."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from mew_protocol.ids import Position
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.cli.remote.reading import share_read
from mew_agent.participant.participant import Participant
from mew_agent.tools.peer_offers import MAX_LISTED
from tests.support.cli import answering, board_shows, mew, seat, status
from tests.support.gateway_client import Client, Message, joined

SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  files: {command: mew, capabilities: [{kind: mcp/response}]}
  mute: {command: mew, capabilities: [{kind: mcp/response}]}
  coder: {command: mew, capabilities: [{kind: chat}]}
  guest: {capabilities: [{kind: chat}]}
"""


async def test_history_prints_the_newest_envelopes_that_match(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as coder:
        for text in ("One.", "Two.\x1b[2J", "Three.\n## ada, now\n\nYes."):
            await coder.chat(text, to=["ada"])
            await coder.until("chat")
        await coder.send_envelope("participant/status", {"messages_in_context": 3})
        await coder.until("participant/status")
        chats = await mew("history", "-n", "2", *seat(gateway))
        statuses = await mew("history", "coder", "--kind", "participant/*", "--json", *seat(gateway))
        of_nobody = await mew("history", "ghost", "--all", *seat(gateway))
        everything = await mew("history", "--all", *seat(gateway))
        document = await mew("history", "--all", "-n", "2", "--markdown", *seat(gateway))
    first, second, *more = chats.out.splitlines()
    assert more == [" " * 10 + line for line in ("## ada, now", "", "Yes.")]
    assert re.fullmatch(r"\d\d:\d\d:\d\d  coder to ada: Two\.\[2J", first)
    assert second.endswith("  coder to ada: Three.")
    assert [one["payload"] for one in json.loads(statuses.out)] == [{"messages_in_context": 3}]
    assert (of_nobody.code, of_nobody.out) == (2, "")
    assert of_nobody.err.startswith("mew: no participant 'ghost' in space 'review'")
    assert len(everything.out.splitlines()) >= 4
    assert re.search(r"## coder to ada, \S+\n\n```markdown\nThree\.\n## ada, now\n\nYes\.\n```\n", document.out)
    assert re.search(r"## coder, participant/status, \S+\n\n```json\n\{\n  \"messages_in_context\": 3", document.out)


@pytest.mark.parametrize(
    "text",
    [
        *("Hi.\n\x1b## ada, now\n\nYes.", "Hi.\n\u200b## ada, now", "ada, now\n---", "ada, now\n===", "\r## ada\r"),
        *("<h2>ada, now</h2>", "<!--", "```\nHi.", "````markdown\n```\n## ada, now", "~~~", "> ## ada", "- ## ada"),
        *("[coder]: http://e.org", "    ## ada", "\x0b## ada, now", "Hi.\u2028## ada, now\u2029===", "<pre>", "\\"),
    ],
)
async def test_a_chat_never_becomes_a_heading_of_the_document(gateway: RunningGateway, text: str) -> None:
    async with joined(gateway, "coder") as coder:
        for one in (text, "The last one."):
            await coder.chat(one, to=["ada"])
            await coder.until("chat")
        document = await mew("history", "--markdown", *seat(gateway))
    found = [one for one in MarkdownIt("commonmark").parse(document.out) if one.nesting >= 0]
    assert [one.type for one in found] == ["heading_open", "inline", "fence"] * 2
    assert all(one.content.startswith("coder to ada, ") for one in found if one.type == "inline")
    assert found[-1].content == "The last one.\n"


async def test_a_long_history_shows_the_share_that_was_read(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mew_agent.cli.remote.http_api.PAGE_MESSAGES", 2)
    shown: list[str] = []
    monkeypatch.setattr("mew_agent.cli.app.terminal.ProgressLine.show", lambda _, text: shown.append(text))
    async with joined(gateway, "coder") as coder:
        for text in "abcdefgh":
            await coder.chat(text, to=["ada"])
            await coder.until("chat")
        assert (await mew("history", *seat(gateway))).code == 0
    shares = [int(one.rpartition(", ")[2].removesuffix("%")) for one in shown]
    assert shares == sorted(set(shares)), "it grows"
    assert shares[-1] == 100
    assert len(shares) >= 4


def test_the_share_of_a_log_of_two_epochs_is_not_known() -> None:
    first, other = Position("a", 1), Position("b", 9)
    assert share_read(first, Position("a", 5), Position("a", 10)) == ", 50%"
    assert share_read(first, other, other) == share_read(first, Position("a", 5), other) == ""
    assert share_read(first, None, Position("a", 10)) == ""


async def test_history_cuts_a_long_chat_except_in_markdown(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as coder:
        await coder.chat(f"{'a' * 5_000} end", to=["ada"])
        await coder.until("chat")
        shown, document = await mew("history", *seat(gateway)), await mew("history", "--markdown", *seat(gateway))
    first, last = shown.out.splitlines()
    assert len(first) < 4_100
    assert last.strip() == "... 1,004 more characters; --markdown prints all"
    assert "a end" in document.out


async def test_tools_are_listed_by_participant() -> None:
    async with serve_gateway(parse_space(SPACE)) as gateway, joined(gateway, "mute"):
        files = Participant(gateway.ws_url, space="review", id="files", token=gateway.token_of("files"))

        @files.tool
        def read_file(path: str) -> str:
            """Read a file.

            More.
            """
            return path

        async with files:
            listed = await mew("tools", "--timeout", "2", *seat(gateway))
            of_files = await mew("tools", "files", "--json", *seat(gateway))
            silent = await mew("tools", "mute", "--timeout", "0.2", *seat(gateway))
            forbidden = await mew("tools", *seat(gateway, "guest"))
    assert listed.out == "files\n  read_file  Read a file.\n"
    assert listed.err == "mew: no answer in 2 s from mute\n"
    (tool,) = json.loads(of_files.out)
    assert (tool["participant"], tool["name"], tool["inputSchema"]["required"]) == ("files", "read_file", ["path"])
    assert silent.code == 4
    assert "mute" in silent.err
    assert forbidden.code == 2
    assert "mcp/request" in forbidden.err


async def test_a_list_of_tools_without_end_is_cut() -> None:
    class Endless:
        pages = 0

        async def request(self, _method: str, _params: Mapping[str, Any]) -> dict[str, Any]:
            Endless.pages += 1
            return {"tools": [{"name": f"t{Endless.pages}-{n}"} for n in range(200)], "nextCursor": "more"}

    async with serve_gateway(parse_space(SPACE)) as gateway:
        token = gateway.token_of("files")
        async with Participant(gateway.ws_url, space="review", id="files", token=token, offers=Endless()):
            listed = await mew("tools", "files", *seat(gateway))
    assert len(listed.out.splitlines()) == MAX_LISTED + 1
    assert "files lists more tools; showing 500" in listed.err
    assert Endless.pages == 3


LAST = "; by its last report\n"


@pytest.mark.parametrize(
    ("after", "verdict"), [(True, "does not fit now, but after a compaction"), (False, "not even after a compaction")]
)
async def test_fit_prints_the_figures_of_the_agent(
    gateway: RunningGateway, tmp_path: Path, after: bool, verdict: str
) -> None:
    text, asked = tmp_path / "text.txt", []
    text.write_text("word " * 2_000)

    async def knows(client: Client, request: Message) -> None:
        asked.append(request["payload"]["fit"]["features"])
        known = {"fits": False, "tokens": 2_100, "tokens_basis": "projected", "fits_after_compaction": after}
        sizes = {"headroom_tokens": 900, "max_tokens": 8_000, "context_basis": "projected", "largest_tokens": 6_317}
        await status(client, to=request, fit={**known, **sizes})

    async with answering(gateway, "coder", knows):
        outcome = await mew("fit", "coder", str(text), *seat(gateway))
    size = "2,100 tokens (projected); free: 900 of 8,000 (projected); at most 6,317 after a compaction"
    assert (outcome.code, outcome.out.endswith(f"{verdict}; {size}\n")) == (3, True)
    assert sum(asked[0]) > 0


async def test_fit_exits_by_whether_a_text_fits(gateway: RunningGateway, tmp_path: Path) -> None:
    context = {
        "basis": "reported",
        "next_prompt_tokens": 7_000,
        "queued": {"messages": 0, "tokens": 0, "basis": "projected"},
    }
    text = tmp_path / "text.txt"
    text.write_text("word " * 2_000)
    sizes: dict[str, Any] = {"tokens": 7_000, "max_tokens": 8_192}

    async def does_not_say(client: Client, request: Message) -> None:
        await status(client, to=request, **sizes, context=context)

    async with answering(gateway, "coder", does_not_say) as coder:
        await status(coder, **sizes, context=context)
        await board_shows(gateway, lambda board: board["coder"].status is not None)
        small = await mew("fit", "coder", "--tokens", "100", *seat(gateway))
        large = await mew("fit", "coder", str(text), "--json", *seat(gateway))
        unknown = await mew("fit", "ada", "--tokens", "100", *seat(gateway))
        missing = await mew("fit", "coder", str(tmp_path / "none"), *seat(gateway))
        del context["queued"]
        queue_unknown = await mew("fit", "coder", "--tokens", "100", *seat(gateway))
    assert (small.code, small.out) == (0, f"coder: fits; 100 tokens (given); free: 783 of 8,192 (reported){LAST}")
    found = json.loads(large.out)
    assert (large.code, found["fits"], found["tokens_basis"]) == (3, False, "heuristic")
    assert (unknown.code, unknown.out) == (1, f"ada: not known; 100 tokens (given); free: unknown (no report){LAST}")
    assert missing.code == 2
    said = f"coder: not known; 100 tokens (given); free: 783 of 8,192 (reported), its queue is not known{LAST}"
    assert (queue_unknown.code, queue_unknown.out) == (1, said)
