"""The contract of a backplane, held by the double and by JetStream on a real server."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import anyio
import pytest
from mew_spaces.parts.jetstream.backplane import (
    LEASE_SECONDS,
    Backplane,
    BackplaneRefused,
    Conflict,
    HistoryLost,
    StoredBatch,
)
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions
from mew_spaces.parts.jetstream.jetstream import connect_jetstream
from mew_spaces.parts.jetstream.nats_server import NatsServer

from tests.support.memory_backplane import MemoryHub
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.waiting import until as wait_until

Connect = Callable[[], Awaitable[Backplane]]
"""Connects one more gateway to the space of the test."""

KEPT_BATCHES = 5


@pytest.fixture
def lease_seconds() -> float:
    return LEASE_SECONDS


@pytest.fixture(params=["memory", "jetstream"])
async def connect(
    request: pytest.FixtureRequest, space: str, tmp_path: Path, lease_seconds: float
) -> AsyncIterator[Connect]:
    if request.param == "memory":
        hub = MemoryHub(kept_batches=KEPT_BATCHES, lease_seconds=lease_seconds)

        async def connect_to_hub() -> Backplane:
            return hub.connect()

        yield connect_to_hub
        return
    server: NatsServer = request.getfixturevalue("nats_server")
    async with AsyncExitStack() as connected:

        async def connect_to_nats() -> Backplane:
            return await connected.enter_async_context(
                connect_jetstream(
                    JetStreamOptions(servers=(server.address,)),
                    space,
                    folder=tmp_path,
                    kept_bytes=64 * 1024 * 1024,
                    kept_batches=KEPT_BATCHES,
                    lease_seconds=lease_seconds,
                )
            )

        yield connect_to_nats


async def read(backplane: Backplane, *, after: int = 0, until: int) -> list[StoredBatch]:
    found: list[StoredBatch] = []
    with anyio.fail_after(PATIENCE_SECONDS):
        await backplane.follow(after, found.append, until=until)
    return found


async def test_batches_have_one_order_for_all_gateways(connect: Connect) -> None:
    one, other = await connect(), await connect()
    assert await one.bounds() == (1, 0)
    assert [await one.append(b"a", "1-1"), await other.append(b"b", "2-1"), await one.append(b"c", "1-2")] == [1, 2, 3]
    assert await other.bounds() == (1, 3)
    assert await read(one, until=3) == await read(other, until=3) == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert await read(one, after=2, until=3) == [(3, b"c")]
    assert await read(one, after=3, until=3) == []


async def test_a_batch_id_is_stored_once(connect: Connect) -> None:
    one, other = await connect(), await connect()
    assert await one.append(b"a", "1-1") == await one.append(b"a", "1-1") == await other.append(b"a", "1-1") == 1
    assert await one.append(b"b", "1-2") == 2


async def test_a_follower_gets_at_once_what_is_stored_later(connect: Connect) -> None:
    one, other = await connect(), await connect()
    found: list[StoredBatch] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.follow, 0, found.append)
        await other.append(b"a", "2-1")
        await one.send(b"b", "1-1")
        await wait_until(lambda: len(found) == 2)
        await one.send(b"b", "1-1")
        assert await one.append(b"b", "1-1") == 2
        await other.append(b"c", "2-2")
        await wait_until(lambda: len(found) == 3)
        tasks.cancel_scope.cancel()
    assert found == [(1, b"a"), (2, b"b"), (3, b"c")]


async def test_an_error_of_the_receiver_ends_the_follower(connect: Connect) -> None:
    one = await connect()
    await one.append(b"a", "1-1")
    await one.append(b"b", "1-2")
    received: list[StoredBatch] = []

    def receive(batch: StoredBatch) -> None:
        received.append(batch)
        raise ValueError("cannot be read")

    with pytest.raises(ValueError, match="cannot be read"), anyio.fail_after(PATIENCE_SECONDS):
        await one.follow(0, receive)
    assert received == [(1, b"a")]


async def test_a_follower_of_lost_batches_fails(connect: Connect) -> None:
    one = await connect()
    for number in range(KEPT_BATCHES + 2):
        await one.append(b"x", f"1-{number}")
    assert await one.bounds() == (3, 7)
    assert len(await read(one, after=2, until=7)) == 5
    with pytest.raises(HistoryLost):
        await read(one, after=1, until=7)
    with pytest.raises(HistoryLost):
        await read(one, after=8, until=9)


async def test_batches_and_values_may_be_larger_than_a_frame(connect: Connect) -> None:
    one, other = await connect(), await connect()
    large = random.Random(1).randbytes(one.max_frame_bytes * 2 + 1)
    first = await one.append(large, "1-1")
    assert await one.append(large, "1-1") == first
    second = await one.append(b"x", "1-2")
    await one.send(large, "1-1")
    assert await read(other, until=second) == [(first, large), (second, b"x")]
    assert await read(other, after=first, until=second) == [(second, b"x")]
    assert await read(other, after=first - 1, until=second) == [(first, large), (second, b"x")]

    revision = await one.save("snapshot", large, expected=0)
    assert await other.load("snapshot") == (large, revision)
    revision = await other.save("snapshot", large[:-1], expected=revision)
    assert await one.load("snapshot") == (large[:-1], revision)
    revision = await other.save("snapshot", b"", expected=revision)
    assert await one.load("snapshot") == (b"", revision)


async def test_of_two_gateways_that_save_one_conflicts(connect: Connect) -> None:
    one, other = await connect(), await connect()
    assert await one.load("board") is None
    first = await one.save("board", b"1", expected=0)
    with pytest.raises(Conflict):
        await other.save("board", b"2", expected=0)
    assert await other.load("board") == (b"1", first)
    second = await other.save("board", b"2", expected=first)
    assert second > first
    with pytest.raises(Conflict):
        await one.save("board", b"3", expected=first)
    await one.delete("board")
    await one.delete("board")
    assert await other.load("board") is None
    with pytest.raises(Conflict):
        await one.save("board", b"4", expected=second)
    assert await one.save("board", b"4", expected=0) > second


async def test_one_gateway_gets_a_free_lease(connect: Connect) -> None:
    one, other = await connect(), await connect()
    assert await one.claim("ticker", b"1")
    assert await one.claim("ticker", b"1")
    assert not await other.claim("ticker", b"2")
    await one.release("ticker")
    assert await other.claim("ticker", b"2")
    await one.renew("ticker", b"1")
    assert not await other.claim("ticker", b"2")


@pytest.mark.parametrize("lease_seconds", [0.4])
async def test_a_lease_ends_once_it_is_not_renewed(connect: Connect) -> None:
    one, other = await connect(), await connect()
    await one.renew("gateway.3", b"c")
    renewed = {"gateway.1": b"a", "gateway.2": b"b"}

    async def keep_renewing() -> None:
        while True:
            for lease, value in list(renewed.items()):
                await one.renew(lease, value)
            await anyio.sleep(0.04)

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks, aclosing(other.leases()) as changes:
            tasks.start_soon(keep_renewing)
            while await anext(changes) != renewed:
                pass
            del renewed["gateway.1"]
            while await anext(changes) != renewed:
                pass
            tasks.cancel_scope.cancel()
    async with aclosing(other.leases()) as changes:
        while await anext(changes):  # also the last one ends, with no renewal of any other
            pass
    assert await other.claim("gateway.1", b"d")


@pytest.mark.parametrize("lease_seconds", [0.4])
async def test_a_lease_goes_to_another_gateway_when_its_holder_is_gone(connect: Connect) -> None:
    one, other = await connect(), await connect()
    assert await one.claim("ticker", b"1")
    with anyio.fail_after(PATIENCE_SECONDS):
        while not await other.claim("ticker", b"2"):
            await anyio.sleep(0.04)


async def test_a_gateway_reads_what_is_left_after_a_trim(connect: Connect) -> None:
    one = await connect()
    for number in range(3):
        await one.append(b"x", f"1-{number}")
    await one.trim(3)
    assert await one.bounds() == (3, 3)
    assert await read(one, after=2, until=3) == [(3, b"x")]
    with pytest.raises(HistoryLost):
        await read(one, after=1, until=3)
    await one.trim(4)
    assert await one.bounds() == (4, 3)


async def test_frames_reach_the_gateways_that_listen(connect: Connect) -> None:
    one, other = await connect(), await connect()
    found: dict[str, list[bytes]] = {"one": [], "other": []}

    async def listen(name: str, backplane: Backplane) -> None:
        async with aclosing(backplane.frames()) as frames:
            async for data in frames:
                if data != b"probe":
                    found[name].append(data)
                heard.add(name)
                if data == b"b":
                    break

    heard: set[str] = set()
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen, "one", one)
            tasks.start_soon(listen, "other", other)
            while len(heard) < 2:
                await one.publish(b"probe")
                await anyio.sleep(0.01)
            with pytest.raises(BackplaneRefused):
                await one.publish(bytes(one.max_frame_bytes + 1))
            largest = bytes(one.max_frame_bytes)
            await one.publish(largest)
            await one.publish(b"b")
    assert found == {"one": [largest, b"b"], "other": [largest, b"b"]}
