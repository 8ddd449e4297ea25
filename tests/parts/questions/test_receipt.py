"""`mew receipt`: a message is found from the end of the history, and each receiver says what became of it."""

import json
from typing import Any

import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.gateway_http import MessagePages
from mew_agent.participant.participant import Participant
from tests.support.cli import mew, seat
from tests.support.gateway_client import joined

SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder: {capabilities: [{kind: chat}, {kind: participant/receipts}]}
"""


async def test_a_message_for_an_offline_agent_is_stored_at_a_position() -> None:
    async with serve_gateway(parse_space(SPACE)) as gateway:
        me = Participant(gateway.ws_url, space="review", id="ada", token=gateway.token_of("ada"))
        async with me:
            sent = await me.chat("Please look at this.", to="coder")
        assert sent.receipt is not None
        assert (sent.receipt.state, sent.receipt.in_context, sent.receipt.basis) == ("stored", "unknown", "gateway")
        assert sent.position == sent.receipt.position
        done = await mew("receipt", sent.id, "--json", *seat(gateway))
        (found,) = json.loads(done.out)
        assert done.code == 3
        assert (found["state"], found["position"], found["participant"]) == ("stored", sent.position, "coder")
        text = (await mew("receipt", sent.id[:8], *seat(gateway))).out
        assert f"stored at {sent.position}" in text
        newest = await mew("receipt", *seat(gateway))  # the newest of our own
        assert newest.out == text
        none = await mew("receipt", *seat(gateway, "coder"))
        assert none.err.startswith("mew: ID: 'coder' has sent no message")


async def test_an_id_is_searched_from_the_newest_message_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[int] = []
    take = MessagePages.take

    def counted(self: MessagePages, page: dict[str, Any]) -> dict[str, Any]:
        pages.append(len(page["messages"]))
        return take(self, page)

    monkeypatch.setattr(MessagePages, "take", counted)
    monkeypatch.setattr("mew_agent.gateway_http.PAGE_MESSAGES", 10)
    async with serve_gateway(parse_space(SPACE)) as gateway, joined(gateway, "ada") as ada:
        for number in range(35):
            await ada.chat("x", id=f"number-{number:02}", to=["coder"])
        await ada.seen_so_far()
        done = await mew("receipt", "number-30", "--json", *seat(gateway))
        assert json.loads(done.out)[0]["id"] == "number-30"
        assert pages == [10]
        pages.clear()
        assert json.loads((await mew("receipt", "number-1", "--json", *seat(gateway))).out)[0]["id"] == "number-19"
        assert pages == [10, 10]
        missing = await mew("receipt", "number-99", *seat(gateway))
        assert missing.code == 2
        assert "no message 'number-99'" in missing.err
