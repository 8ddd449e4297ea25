"""Sending a request to one participant and waiting for its answer."""

import anyio
from mew_spaces.gateway.gateway import RunningGateway

from tests.support.cli import answering, mew, seat
from tests.support.gateway_client import Client, Message, joined
from tests.support.waiting import PATIENCE_SECONDS


async def says_nothing(_client: Client, _request: Message) -> None:
    return


async def test_answer_to_another_request_is_ignored(gateway: RunningGateway) -> None:
    async def answers_another(client: Client, request: Message) -> None:
        await client.chat("not for you", to=["ada"], correlation_id=["another question"])
        await client.chat("for you", to=["ada"], correlation_id=[request["id"]])

    async with answering(gateway, "coder", answers_another):
        outcome = await mew("chat", "coder", "hi", *seat(gateway))
    assert outcome.out == "for you\n"


async def test_timeout_has_its_own_exit_code(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", says_nothing):
        outcome = await mew("chat", "coder", "hi", "--timeout", "0.3", *seat(gateway))
    assert outcome.code == 4
    assert "'coder' did not answer 'chat' within 0.3 seconds" in outcome.err


async def test_participant_that_leaves_ends_the_wait(gateway: RunningGateway) -> None:
    received = anyio.Event()

    async def hears(_client: Client, _request: Message) -> None:
        received.set()

    outcomes = []
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            outcomes.append(await mew("chat", "coder", "hi", *seat(gateway)))

        async with answering(gateway, "coder", hears):
            tasks.start_soon(ask)
            with anyio.fail_after(PATIENCE_SECONDS):
                await received.wait()
    assert outcomes[0].code == 4
    assert "left before it answered" in outcomes[0].err


async def test_sender_needs_the_capability(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder"):
        outcome = await mew("compact", "coder", *seat(gateway, "guest"))
    assert outcome.code == 2
    assert "participant/compact" in outcome.err
