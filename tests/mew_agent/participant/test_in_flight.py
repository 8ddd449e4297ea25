"""Requests of peers that are taken back while somebody works on them."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope

from mew_agent.participant.in_flight import Underway


class Bench:
    """Offers whose work ends when a test lets it, or when it is stopped."""

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


async def answered(told: Envelope) -> tuple[dict[str, Any] | None, Bench]:
    """What becomes of a request when this arrives while it is worked on."""
    bench, underway = Bench(), Underway()
    came: list[dict[str, Any] | None] = []

    async def work() -> None:
        came.append(await underway.answer(REQUEST, bench, is_paused=False))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await bench.begun.wait()
            underway.receive(told)
            bench.go_on.set()
    return came[0], bench


@pytest.mark.parametrize(
    "told",
    [
        notice({"requestId": 7, "reason": "timeout"}, about=("r1",)),
        notice(None, about=("r1",)),
        notice({"requestId": 7}),
        notice({"requestId": "r1"}),
    ],
)
async def test_who_made_a_request_may_take_it_back_and_gets_no_answer(told: Envelope) -> None:
    payload, bench = await answered(told)
    assert payload is None
    assert bench.is_stopped


@pytest.mark.parametrize(
    "told",
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
async def test_nothing_else_stops_it(told: Envelope) -> None:
    payload, bench = await answered(told)
    assert payload == {"jsonrpc": "2.0", "id": 7, "result": {"done": "tools/list"}}
    assert not bench.is_stopped


async def test_two_requests_of_one_name_at_once_are_both_stopped() -> None:
    """Clients exist that number their envelopes from 1 again."""
    underway, benches = Underway(), [Bench(), Bench()]

    async def work(bench: Bench) -> None:
        await underway.answer(REQUEST, bench, is_paused=False)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for bench in benches:
                tasks.start_soon(work, bench)
                await bench.begun.wait()
            underway.receive(notice(about=("r1",)))
    assert all(bench.is_stopped for bench in benches)
    underway.receive(notice(about=("r1",)))  # nothing runs any more
