"""What bounds the work when all members of a space join at once."""

import json
from collections.abc import AsyncIterator

import anyio
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.core.events import ConnectionId
from mew_spaces.gateway.delivery import SINGLE_PRESENCES, JoinPace, PresenceBatches
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.errors import NotConnected
from mew_agent.participant.participant import Participant
from tests.support.gateway_client import Client, opened
from tests.support.waiting import PATIENCE_SECONDS

MEMBERS = 2 * SINGLE_PRESENCES


class Clock:
    """A clock set by hand."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    people = {f"m{number}": {"capabilities": [{"kind": "chat"}]} for number in range(MEMBERS)}
    async with serve_gateway(parse_space(json.dumps({"space": {"id": "demo"}, "participants": people}))) as running:
        yield running


async def join(gateway: RunningGateway, client: Client, **delivery: object) -> None:
    await client.send({"type": "join", "token": gateway.token_of(client.name), "delivery": delivery})


def test_few_presences_are_not_collected() -> None:
    clock = Clock()
    batches = PresenceBatches(clock=clock)
    assert not batches.collects(is_replaying=False)
    batches.begin(ConnectionId(1))
    assert not any(batches.collects(is_replaying=False) for _ in range(SINGLE_PRESENCES))
    assert batches.collects(is_replaying=False)
    clock.seconds = 1.0
    assert not batches.collects(is_replaying=False)
    assert batches.collects(is_replaying=True)


def test_each_session_gets_all_envelopes_after_its_welcome_in_order() -> None:
    batches = PresenceBatches()
    batches.begin(ConnectionId(1))
    batches.add({"n": 1})
    batches.begin(ConnectionId(2))
    batches.add({"n": 2}, without=[ConnectionId(2)])  # its own presence
    batches.add({"n": 3})
    sent = dict(batches.drain())
    assert sent == {(ConnectionId(1),): [{"n": 1}, {"n": 2}, {"n": 3}], (ConnectionId(2),): [{"n": 3}]}
    batches.end(ConnectionId(2))
    batches.add({"n": 4})
    assert list(batches.drain()) == [((ConnectionId(1),), [{"n": 4}])]
    assert list(batches.drain()) == []


def test_joins_beyond_the_burst_are_spread_over_time() -> None:
    clock = Clock()
    pace = JoinPace(per_second=10, burst=2, clock=clock)
    waits = [pace.retry_after_seconds() for _ in range(5)]
    assert waits == pytest.approx([0.0, 0.0, 0.1, 0.2, 0.3])
    clock.seconds = 0.1
    assert pace.retry_after_seconds() == 0.0


async def test_a_storm_reaches_batching_sessions_in_batches_and_others_singly(gateway: RunningGateway) -> None:
    async with opened(gateway, "m0") as batching, opened(gateway, "m1") as plain:
        await join(gateway, batching, presence="batched")
        await plain.join(gateway.token_of("m1"))
        await batching.until("system/welcome")
        await plain.until("system/welcome")
        others = [f"m{number}" for number in range(2, MEMBERS)]
        async with anyio.create_task_group() as tasks:

            async def come(name: str) -> None:
                async with opened(gateway, name) as client:
                    await client.join(gateway.token_of(name))
                    await client.until("system/welcome")
                    await anyio.sleep_forever()

            for name in others:
                tasks.start_soon(come, name)
            singly = [(await plain.until("system/presence"))["payload"]["participant"]["id"] for _ in others]
            seen: list[str] = []
            batches = 0
            while len(seen) <= len(others):
                message = await batching.next()
                changes = [message["payload"]]
                if message["kind"] == "system/presence-batch":
                    batches += 1
                    assert "seq" not in message
                    changes = message["payload"]["changes"]
                seen += [one["participant"]["id"] for one in changes]
            tasks.cancel_scope.cancel()
    assert seen == ["m1", *singly]
    assert batches


async def test_a_participant_knows_all_members_after_a_storm(gateway: RunningGateway) -> None:
    def participant(number: int) -> Participant:
        return Participant(gateway.ws_url, space="demo", id=f"m{number}", token=gateway.token_of(f"m{number}"))

    async with participant(0) as first, anyio.create_task_group() as tasks:

        async def come(number: int) -> None:
            async with participant(number):
                await anyio.sleep_forever()

        for number in range(1, MEMBERS):
            tasks.start_soon(come, number)
        with anyio.fail_after(PATIENCE_SECONDS):
            while len(first.peers) < MEMBERS - 1:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
        with anyio.fail_after(PATIENCE_SECONDS):
            while first.peers:
                await anyio.sleep(0.01)


async def test_a_session_that_comes_too_soon_retries_later(gateway: RunningGateway) -> None:
    gateway.service.join_pace = JoinPace(per_second=2, burst=1, clock=Clock())
    async with opened(gateway, "m0") as first, opened(gateway, "m1") as second, opened(gateway, "m2") as plain:
        await join(gateway, first)
        await first.until("system/welcome")
        await join(gateway, second)
        error = await second.error()
        assert error["error"] == "rate_limited"
        assert error["retry_after_seconds"] == 0.5
        assert await second.closing() == (4429, "rate_limited")
        gateway.service.join_pace = JoinPace(per_second=2, burst=1)
        await plain.join(gateway.token_of("m2"))
        await plain.until("system/welcome")
    me = Participant(gateway.ws_url, space="demo", id="m3", token=gateway.token_of("m3"))
    async with me:
        assert me.session.client.joins == 1
    gateway.service.join_pace = JoinPace(per_second=0.001, burst=0)
    token, cause = gateway.token_of("m4"), "no answer in time"
    for seconds in (0.5, 5.0, 50.0):  # a busy gateway may give no answer in the first
        if "no answer in time" in cause:
            refused = Participant(gateway.ws_url, space="demo", id="m4", token=token, first_connect_seconds=seconds)
            with pytest.raises(NotConnected) as raised:
                async with refused:
                    pass
            cause = str(raised.value)
    assert "many participants join at the moment" in cause
