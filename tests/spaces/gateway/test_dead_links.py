"""A link that passes nothing is noticed from the gateway's side."""

import time

import anyio
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from websockets.asyncio.client import connect

from tests.support.faulty_link import faulty_link
from tests.support.gateway_client import Client, joined

DEFAULTS = """
space: {id: demo}
participants: {ada: {capabilities: [{kind: "*"}]}, bob: {}}
"""


async def seconds_until_left(gateway: RunningGateway, *, backlog: int) -> float:
    """Join through a link, stall it, and return how long bob takes to leave."""
    async with (
        faulty_link(gateway.port) as link,
        joined(gateway, "ada") as ada,
        connect(link.url, ping_interval=None, max_size=None) as socket,
    ):
        bob = Client(socket, "bob")
        await bob.join(gateway.token_of("bob"))
        await bob.next()
        await ada.until("system/presence")
        link.stall()
        begin = time.monotonic()
        for _ in range(backlog):
            await ada.chat("x" * 100_000)
        with anyio.fail_after(30):
            while True:
                message = await ada.until("system/presence")
                if message["payload"]["event"] == "leave":
                    return time.monotonic() - begin


async def test_a_dead_link_is_noticed_within_ten_seconds() -> None:
    async with serve_gateway(parse_space(DEFAULTS)) as gateway:
        assert await seconds_until_left(gateway, backlog=0) <= 10


async def test_a_dead_link_with_a_backlog_is_noticed_as_soon(config: SpaceConfig) -> None:
    roomy = parse_space(DEFAULTS + "limits: {ping_interval_seconds: 0.5, ping_timeout_seconds: 0.5}")
    async with serve_gateway(roomy) as gateway:
        assert await seconds_until_left(gateway, backlog=100) <= 4
