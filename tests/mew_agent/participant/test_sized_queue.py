"""What waits for a slow reader is bounded by its number and by its size."""

import anyio

from mew_agent.participant.sized_queue import SizedQueue
from tests.support.waiting import until


async def test_items_arrive_in_their_order_until_the_queue_is_closed() -> None:
    queue: SizedQueue[int] = SizedQueue(100, 100)
    for number in range(5):
        await queue.put(number, 1)
    queue.close()
    assert [one async for one in queue] == [0, 1, 2, 3, 4]


async def test_a_writer_waits_while_too_many_bytes_wait() -> None:
    queue: SizedQueue[str] = SizedQueue(1_000, 100)
    put: list[str] = []

    async def write() -> None:
        for name in ("large", "small", "last"):
            await queue.put(name, 150 if name == "large" else 1)
            put.append(name)
        queue.close()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await until(lambda: put == ["large"])
        await anyio.wait_all_tasks_blocked()
        assert len(queue) == 1
        assert [one async for one in queue] == ["large", "small", "last"]


async def test_a_writer_waits_while_too_many_items_wait() -> None:
    queue: SizedQueue[int] = SizedQueue(2, 100)
    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(queue.put, number)
        await anyio.wait_all_tasks_blocked()
        assert len(queue) == 2
        assert sorted([await anext(queue) for _ in range(4)]) == [0, 1, 2, 3]


async def test_a_reader_waits_for_an_item() -> None:
    queue: SizedQueue[str] = SizedQueue(2, 100)
    seen: list[str] = []

    async def read() -> None:
        async for item in queue:
            seen.append(item)  # noqa: PERF401 - one after the other

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        queue.put_nowait("a")
        await until(lambda: seen == ["a"])
        queue.close()
