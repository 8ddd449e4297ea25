"""A meter says whether a chat is in the prompts that it relays, and `unknown` where it cannot tell."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import pytest
from mew_protocol.json_values import objects_at
from mew_protocol.payloads.read_receipts import ReadReceipt

from mew_agent import Participant
from mew_agent.context.message_facts import MessageKey
from mew_agent.parts.meter.main_line import MeteredCall
from mew_agent.parts.meter.meter import run_meter
from mew_agent.parts.meter.relayed_texts import MAX_CHARS, MAX_CHATS, SAME_WORDS, TOO_LONG, TOO_SHORT, RelayedTexts
from mew_agent.parts.rehearsal import RehearsalServer, serve_rehearsal
from mew_agent.parts.shared.relay import MAX_READ_BODY_BYTES
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]
TEXT = 'The code of door 4 is "K-47".\nUse it before Friday.'
TOOLS: Any = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]


@dataclass
class Metered:
    """The agent `coder` behind its meter, and ada, who writes in the space."""

    server: RehearsalServer
    ada: Participant
    url: str
    calls: list[MeteredCall]
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def ask(self, *messages: dict[str, Any], tools: Any = TOOLS) -> None:
        """Make one call of the agent with all messages so far, these included."""
        self.messages += messages
        body = {"model": "rehearsal", "messages": self.messages, "tools": tools}
        async with httpx2.AsyncClient() as client:
            answer = await client.post(f"{self.url}/chat/completions", json=body)
        answer.raise_for_status()
        self.messages.append(answer.json()["choices"][0]["message"])

    async def receipt(self, message_id: str) -> ReadReceipt:
        (found,) = await self.ada.receipts("coder", message_id)
        return found


@pytest.fixture
async def metered(joined: Joined) -> AsyncIterator[Metered]:
    calls: list[MeteredCall] = []
    urls: list[str] = []
    async with serve_rehearsal() as server, joined("ada") as ada, anyio.create_task_group() as tasks:

        async def run() -> None:
            await run_meter(joined("coder"), server.base_url, on_call=calls.append, ready=urls.append)

        tasks.start_soon(run)
        await until(lambda: urls)
        yield Metered(server, ada, urls[0], calls)
        tasks.cancel_scope.cancel()


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def test_a_chat_is_read_once_its_conversation_is_confirmed(metered: Metered) -> None:
    sent = await metered.ada.chat(TEXT, to="coder")
    await metered.ada.receipts("coder", sent.id, follow=True)
    before = await metered.receipt(sent.id)
    assert (before.state, before.in_context, before.basis) == ("unknown", "unknown", "relayed_prompt")
    await metered.ask(said("Hello, who is there?"))
    await metered.ask(said(f"ada says: {TEXT}"))
    assert "call 2 held it" in str((await metered.receipt(sent.id)).reason)
    await metered.ask(said("And now?"))
    with anyio.fail_after(PATIENCE_SECONDS):
        receipts = await sent.read()
    assert str(receipts["coder"]) == "read by coder in call 2"
    found = await metered.receipt(sent.id)
    assert (found.state, found.in_context, found.basis) == ("in_prompt", "whole", "relayed_prompt")
    assert TEXT in str(objects_at(metered.server.requests[1].body, "messages")[2]["content"])
    assert [call.number for call in metered.calls if call.verdict == "main"] == [1, 2]


async def test_a_chat_inside_a_json_result_of_a_tool_is_recognised(metered: Metered) -> None:
    sent = await metered.ada.chat(TEXT, to="coder")
    await metered.receipt(sent.id)
    await metered.ask(said(f'{{"chats": [{{"text": {json.dumps(TEXT)}}}]}}'))
    await metered.ask(said("And now?"))
    found = await metered.receipt(sent.id)
    assert found.call is not None
    assert found.call.number == 1


async def test_after_a_compaction_of_the_agent_the_form_is_unknown(metered: Metered) -> None:
    sent = await metered.ada.chat(TEXT, to="coder")
    await metered.receipt(sent.id)
    await metered.ask(said(TEXT))
    await metered.ask(said("And now?"))
    metered.messages = [said("Summary: door 4 has a code.")]
    await metered.ask()
    await metered.ask(said("Go on."))
    found = await metered.receipt(sent.id)
    assert (found.state, found.in_context) == ("in_prompt", "unknown")
    assert found.reason == "the newest relayed prompt does not hold it word for word"


async def test_a_background_call_and_a_failed_call_read_nothing(metered: Metered) -> None:
    sent = await metered.ada.chat(TEXT, to="coder")
    await metered.receipt(sent.id)
    await metered.ask(said("Hello, who is there?"))
    await metered.ask(said("And now?"))
    own, metered.messages = metered.messages, []
    await metered.ask(said(f"A title for: {TEXT}"), tools=[])
    metered.messages = own
    await metered.ask(said("Go on."))
    assert (await metered.receipt(sent.id)).state == "unknown"
    metered.server.change(status=503)
    with pytest.raises(httpx2.HTTPStatusError):
        await metered.ask(said(TEXT))
    metered.server.change(status=None)
    metered.messages.pop()
    await metered.ask(said("Go on, please."))
    await metered.ask(said("Thank you."))
    found = await metered.receipt(sent.id)
    assert (found.state, found.call) == ("unknown", None)
    assert [call.verdict for call in metered.calls] == [
        "main",
        "main",
        "aside",
        "main",
        "failed",
        "main",
        "provisional",
    ]


async def test_words_that_were_there_before_say_nothing(metered: Metered) -> None:
    await metered.ask(said(TEXT))
    sent = await metered.ada.chat(TEXT, to="coder")
    await metered.receipt(sent.id)
    await metered.ask(said("And now?"))
    metered.messages = [said(f"Begin again. {TEXT}")]
    await metered.ask()
    await metered.ask(said("Go on."))
    found = await metered.receipt(sent.id)
    assert (found.state, found.reason) == ("unknown", "its words were in a prompt before it was sent")


async def test_a_call_that_cannot_be_read_makes_the_form_unknown(metered: Metered) -> None:
    sent = await metered.ada.chat(TEXT, to="coder")
    await metered.receipt(sent.id)
    await metered.ask(said(TEXT))
    await metered.ask(said("And now?"))
    async with httpx2.AsyncClient() as client:
        headers = {"content-encoding": "br", "content-type": "application/json"}
        await client.post(f"{metered.url}/chat/completions", content=b"...", headers=headers)
    found = await metered.receipt(sent.id)
    assert (found.state, found.in_context, found.reason) == ("in_prompt", "unknown", "a newer call could not be read")
    await metered.ask(said("Go on."))
    assert (await metered.receipt(sent.id)).in_context == "whole"
    assert MAX_READ_BODY_BYTES > MAX_CHARS


@pytest.mark.parametrize(
    ("texts", "problems"),
    [
        (["ok, thanks"], [TOO_SHORT]),
        (["x" * (MAX_CHARS + 1)], [TOO_LONG]),
        (["Please review the parser."] * 2, [SAME_WORDS, SAME_WORDS]),
        (["Please review the parser.", "Please review the parser. Today."], [SAME_WORDS, None]),
        (["Please review the parser. Today.", "Please review the parser."], [None, SAME_WORDS]),
    ],
)
def test_texts_that_cannot_be_told_apart_are_not_looked_for(texts: list[str], problems: list[str | None]) -> None:
    relayed = RelayedTexts()
    keys = [MessageKey("ada", str(number)) for number in range(len(texts))]
    for key, text in zip(keys, texts, strict=True):
        relayed.add(key, text)
    assert [(found := relayed.find(key)) and found.problem for key in keys] == problems


def test_a_sender_of_many_chats_loses_its_own_first() -> None:
    relayed = RelayedTexts()
    relayed.add(MessageKey("bob", "first"), "Please look at the harbour wall.")
    for number in range(2 * MAX_CHATS):
        relayed.add(MessageKey("ada", str(number)), f"This is message number {number} of very many.")
    assert relayed.find(MessageKey("bob", "first")) is not None
    assert relayed.find(MessageKey("ada", "0")) is None
    assert relayed.find(MessageKey("ada", str(2 * MAX_CHATS - 1))) is not None


def test_each_message_is_searched_once_for_each_chat() -> None:
    relayed = RelayedTexts()
    for number in range(MAX_CHATS + 10):
        relayed.add(MessageKey("ada", str(number)), f"The code of door {number:04} is K-{number:04}.")
    assert relayed.find(MessageKey("ada", "9")) is None
    messages = [(f"digest-{number}", said(f"The code of door {number:04} is K-{number:04}.")) for number in range(100)]
    first = relayed.search(messages)
    assert first.held == frozenset(range(11, 101))
    relayed.note(first)
    again = relayed.search([*messages, ("digest-new", said("The code of door 0120 is K-0120."))])
    assert [digest for digest, *_ in again.searched] == ["digest-new"]
    assert again.held == first.held | {121}
