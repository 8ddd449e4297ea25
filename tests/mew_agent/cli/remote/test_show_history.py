"""`mew history`: past messages."""

import json
import re

import pytest
from markdown_it import MarkdownIt
from mew_spaces.gateway.gateway import RunningGateway

from tests.support.cli import mew, seat
from tests.support.gateway_client import joined


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
    ("pattern", "found"), [("participant*", 0), ("participant/*", 1), ("/status$/", 1), ("participant/[a-z]*", 0)]
)
async def test_a_kind_in_history_matches_as_in_a_capability(gateway: RunningGateway, pattern: str, found: int) -> None:
    async with joined(gateway, "coder") as coder:
        await coder.send_envelope("participant/status", {"messages_in_context": 3})
        await coder.until("participant/status")
        outcome = await mew("history", "--kind", pattern, "--json", *seat(gateway))
    assert len(json.loads(outcome.out)) == found


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


async def test_a_long_history_is_read_no_further_than_needed(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mew_agent.gateway_http.PAGE_MESSAGES", 2)
    shown: list[str] = []
    monkeypatch.setattr("mew_agent.cli.app.terminal.ProgressLine.show", lambda _, text: shown.append(text))
    async with joined(gateway, "coder") as coder:
        for text in "abcdefgh":
            await coder.chat(text, to=["ada"])
            await coder.until("chat")
        outcome = await mew("history", "-n", "3", *seat(gateway))
    assert [line[-1] for line in outcome.out.splitlines()] == ["f", "g", "h"]
    assert shown == ["review: read 2 envelopes", "review: read 4 envelopes"]


async def test_history_cuts_a_long_chat_except_in_markdown(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as coder:
        await coder.chat(f"{'a' * 5_000} end", to=["ada"])
        await coder.until("chat")
        shown, document = await mew("history", *seat(gateway)), await mew("history", "--markdown", *seat(gateway))
    first, last = shown.out.splitlines()
    assert len(first) < 4_100
    assert last.strip() == "... 1,004 more characters; --markdown prints all"
    assert "a end" in document.out
