"""MCP requests that their sender cancels while they are in progress."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope

from mew_agent.participant.mcp_server import McpServer
from mew_agent.participant.participant import Participant
from tests.support.waiting import PATIENCE_SECONDS


class Bench:
    """Offers that run until the test releases them, or until they are cancelled."""

    def __init__(self) -> None:
        self.begun, self.go_on = anyio.Event(), anyio.Event()
        self.is_stopped = False

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.begun.set()
        try:
            await self.go_on.wait()
        except anyio.get_cancelled_exc_class():
            self.is_stopped = True
            raise
        return {"done": method}


def envelope(kind: str, sender: str, name: str, body: dict[str, Any], about: tuple[str, ...] = ()) -> Envelope:
    return Envelope.write(kind, id=name, ts="t", sender=sender, payload=body, to=("me",), correlation_id=about)


REQUEST = envelope("mcp/request", "ada", "r1", {"method": "tools/list", "id": 7})


def notice(
    params: object = None, *, sender: str = "ada", about: tuple[str, ...] = (), method: str = "notifications/cancelled"
) -> Envelope:
    return envelope("mcp/notification", sender, "n1", {"method": method, "params": params}, about)


def server_of(bench: Bench) -> McpServer:
    me = Participant("ws://h", space="demo", id="me", token="t")
    return McpServer(me.messenger, bench)


async def answered(reported: Envelope) -> tuple[dict[str, Any] | None, Bench]:
    """The response to a request if the notification `told` arrives while it is in progress."""
    bench = Bench()
    server = server_of(bench)
    came: list[dict[str, Any] | None] = []

    async def work() -> None:
        came.append(await server.response_to(REQUEST))

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await bench.begun.wait()
            server.receive(reported)
            bench.go_on.set()
    return came[0], bench


@pytest.mark.parametrize(
    "reported",
    [
        notice({"requestId": 7, "reason": "timeout"}, about=("r1",)),
        notice(None, about=("r1",)),
        notice({"requestId": 7}),
        notice({"requestId": "r1"}),
    ],
)
async def test_sender_cancels_its_request_and_gets_no_response(reported: Envelope) -> None:
    payload, bench = await answered(reported)
    assert payload is None
    assert bench.is_stopped


@pytest.mark.parametrize(
    "reported",
    [
        notice({"requestId": 7}, sender="bob", about=("r1",)),
        notice({"requestId": 8}),
        notice({"requestId": 7}, about=("r2",)),
        notice({"requestId": None}),
        notice([7]),
        notice({"requestId": 7}, method="notifications/progress"),
        envelope("chat", "ada", "c1", {"method": "notifications/cancelled"}, ("r1",)),
    ],
)
async def test_unrelated_notifications_cancel_nothing(reported: Envelope) -> None:
    payload, bench = await answered(reported)
    assert payload == {"jsonrpc": "2.0", "id": 7, "result": {"done": "tools/list"}}
    assert not bench.is_stopped


async def test_two_requests_with_one_id_are_both_cancelled() -> None:
    """Some clients restart their envelope ids at 1."""
    benches = [Bench(), Bench()]
    server = server_of(benches[0])

    async def work(bench: Bench) -> None:
        server.offers = bench
        await server.response_to(REQUEST)

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            for bench in benches:
                tasks.start_soon(work, bench)
                await bench.begun.wait()
            server.receive(notice(about=("r1",)))
    assert all(bench.is_stopped for bench in benches)
    server.receive(notice(about=("r1",)))  # nothing is in progress now
