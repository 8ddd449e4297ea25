"""A control waits for a running call, within a bound; past it the call is interrupted."""

import anyio

from mew_agent.conversation.history_lock import HistoryLock


async def test_whoever_changes_the_history_waits_for_the_call() -> None:
    order: list[str] = []
    history = HistoryLock(lambda: order.append("interrupted"), bound_seconds=30)
    holds = anyio.Event()

    async def call() -> None:
        async with history.lock:
            holds.set()
            await anyio.lowlevel.checkpoint()
            order.append("called")

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await holds.wait()
            async with history.between_calls():
                order.append("changed")
    assert order == ["called", "changed"]


async def test_past_the_bound_the_call_is_interrupted_and_then_waited_for() -> None:
    order: list[str] = []
    stopped, holds = anyio.Event(), anyio.Event()

    def interrupt() -> None:
        order.append("interrupted")
        stopped.set()

    history = HistoryLock(interrupt, bound_seconds=0.001)

    async def call() -> None:
        async with history.lock:
            holds.set()
            await stopped.wait()
            order.append("ended")

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await holds.wait()
            async with history.between_calls():
                order.append("changed")
    assert order == ["interrupted", "ended", "changed"]
    assert not history.lock.statistics().locked
