"""WebSocket connections from handshake to close; tests/contract/test_channels.py covers both ways of serving them."""

import anyio
from mew_spaces.gateway.gateway import RunningGateway

from tests.support.gateway_client import joined, opened
from tests.support.waiting import PATIENCE_SECONDS


async def test_an_unknown_space_in_the_query_is_refused(gateway: RunningGateway) -> None:
    from websockets.asyncio.client import connect

    headers = {"Authorization": "Bearer token-of-coder"}
    async with connect(gateway.ws_url + "/ws?space=other", additional_headers=headers) as one:
        with anyio.fail_after(PATIENCE_SECONDS):
            assert "space_not_found" in str(await one.recv())


async def test_ten_connections_receive_messages_in_one_order(gateway: RunningGateway) -> None:
    received: list[list[str]] = []

    async def take_part(number: int) -> None:
        async with joined(gateway, "ada") as one:
            ready.append(number)
            with anyio.fail_after(PATIENCE_SECONDS):
                await everybody.wait()
            for index in range(20):
                await one.chat(f"{number}-{index}")
            received.append([(await one.until("chat"))["payload"]["text"] for _ in range(200)])

    ready: list[int] = []
    everybody = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(take_part, number)
        with anyio.fail_after(PATIENCE_SECONDS):
            while len(ready) < 10:
                await anyio.lowlevel.checkpoint()
        everybody.set()
    assert all(one == received[0] for one in received)
    for number in range(10):
        assert [text for text in received[0] if text.startswith(f"{number}-")] == [f"{number}-{i}" for i in range(20)]


async def test_a_connection_that_never_joined_causes_no_leave(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada:
        async with opened(gateway):
            pass
        await ada.chat("only me")
        assert (await ada.next())["kind"] == "chat"
