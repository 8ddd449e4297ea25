"""A client over a socket that reports only when it is asked: the gateway asks, and the board follows."""

from typing import Any

import anyio
from mew_spaces.gateway.gateway import RunningGateway

from tests.support.gateway_client import Client, joined
from tests.support.waiting import PATIENCE_SECONDS, until


async def test_the_board_follows_a_client_that_reports_only_when_asked(gateway: RunningGateway) -> None:
    heard = 0

    async def answer_requests(client: Client) -> None:
        nonlocal heard
        while True:
            message = await client.next()
            if message["kind"] == "chat":
                heard += 1
            if message["kind"] == "participant/request-status":
                figures = {"messages_in_context": heard, "tokens": 100 * heard, "max_tokens": 20_000}
                about = {"to": [message["from"]], "correlation_id": [message["id"]]}
                await client.send_envelope("participant/status", figures, **about)

    def shown() -> tuple[Any, ...]:
        (entry,) = (one for one in gateway.board().participants if one.id == "coder")
        return (entry.status.tokens if entry.status else None, entry.outdated, entry.connected)

    with anyio.fail_after(PATIENCE_SECONDS):
        async with joined(gateway, "ada") as ada:
            async with joined(gateway, "coder") as coder, anyio.create_task_group() as tasks:
                tasks.start_soon(answer_requests, coder)
                await until(lambda: shown() == (0, None, True))
                await ada.chat("hello", to=["coder"])
                await until(lambda: shown() == (0, "messages_since", True))
                await until(lambda: shown() == (100, None, True))
                tasks.cancel_scope.cancel()
            await until(lambda: not shown()[2])
            heard = 0
            async with joined(gateway, "coder") as coder, anyio.create_task_group() as tasks:
                await until(lambda: shown() == (100, "before_join", True))
                tasks.start_soon(answer_requests, coder)
                await until(lambda: shown() == (0, None, True))
                tasks.cancel_scope.cancel()
