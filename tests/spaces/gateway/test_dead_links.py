"""A link that passes nothing is noticed from the gateway's side."""

import anyio
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway
from websockets.asyncio.client import connect

from tests.support.faulty_link import faulty_link
from tests.support.gateway_client import Client, joined
from tests.support.waiting import PATIENCE_SECONDS

SPACE = """
space: {id: demo}
participants: {ada: {capabilities: [{kind: "*"}]}, bob: {}}
"""
SHORT = "limits: {ping_interval_seconds: 0.5, ping_timeout_seconds: 4, envelope_burst: 1000}"


def test_by_default_a_dead_link_is_noticed_within_ten_seconds() -> None:
    limits = parse_space(SPACE).limits
    assert limits.ping_interval_seconds + limits.ping_timeout_seconds <= 10


@pytest.mark.parametrize("backlog", [0, 100])
async def test_a_member_behind_a_dead_link_leaves(backlog: int) -> None:
    """The link stays open, so that only missing pongs show it; a backlog fills the buffers before the ping."""
    async with (
        serve_gateway(parse_space(SPACE + SHORT)) as gateway,
        faulty_link(gateway.port) as link,
        joined(gateway, "ada") as ada,
        connect(link.url, ping_interval=None, close_timeout=0.1) as socket,
    ):
        bob = Client(socket, "bob")
        await bob.join(gateway.token_of("bob"))
        await bob.next()
        await ada.until("system/presence")
        link.stall()
        for _ in range(backlog):
            await ada.chat("x" * 100_000)
        with anyio.fail_after(PATIENCE_SECONDS):
            while (await ada.until("system/presence"))["payload"]["event"] != "leave":
                pass
