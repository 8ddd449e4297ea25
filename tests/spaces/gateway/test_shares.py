"""Who makes the gateway do much is read later; nobody loses anything."""

import anyio
import httpx2
import pytest
from mew_listener import time_share
from mew_spaces.gateway.gateway import RunningGateway

from tests.support.gateway_client import joined
from tests.support.waiting import PATIENCE_SECONDS

MESSAGES, SIZE = 20, 20_000


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_share, "BYTES_A_SECOND", 200_000)
    monkeypatch.setattr(time_share, "BURST_SECONDS", 0.1)


async def test_a_member_that_sends_much_is_read_after_others_and_loses_nothing(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "coder") as coder, joined(gateway, "ada") as reader:
        for number in range(MESSAGES):
            await ada.chat(f"{number} {'x' * SIZE}")
        await coder.chat("small")
        seen = [(await reader.until("chat"))["payload"]["text"].split()[0] for _ in range(MESSAGES + 1)]
    assert [one for one in seen if one != "small"] == [str(number) for number in range(MESSAGES)]
    assert seen.index("small") < MESSAGES / 2


async def test_connections_of_one_member_share_its_part(gateway: RunningGateway) -> None:
    token = {"authorization": f"Bearer {gateway.token_of('ada')}"}
    spent = gateway.registry.allowances
    async with (
        joined(gateway, "ada") as one,
        joined(gateway, "ada") as two,
        httpx2.AsyncClient(base_url=gateway.url, headers=token, timeout=PATIENCE_SECONDS) as http,
    ):
        for each in (one, two):
            await each.chat("x" * SIZE)
            await each.until("chat")
        begun = anyio.current_time()
        for _ in range(5):
            body = {"kind": "chat", "payload": {"text": "x" * 1_000}}
            assert (await http.post("/participants/ada/messages", json=body)).status_code == 200
        # The two chats took twice the burst: what came over sockets is waited for over HTTP.
        assert anyio.current_time() - begun > 0.05
    assert {name.rpartition("/")[2] for name in spent._left} == {"ada"}
