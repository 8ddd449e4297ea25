"""A session: joining, staying joined, background tasks, leaving."""

import logging
from collections.abc import Callable

import anyio
import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.errors import ConfigError, GatewayError, NotConnected, Unauthorized
from mew_agent.participant.event_handlers import ChatReceived
from mew_agent.participant.participant import Participant
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]


async def test_entering_returns_after_the_welcome_and_leaving_closes(gateway: RunningGateway, joined: Joined) -> None:
    async with joined("ada") as ada:
        assert ada.is_joined
        assert ada.may_send("chat")
        assert gateway.service.connections == 1
    with pytest.raises(NotConnected):
        await ada.chat("gone")
    await until(lambda: not gateway.service.connections)


async def test_errors_that_prevent_joining_are_raised_unwrapped(gateway: RunningGateway, free_port: int) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        with pytest.raises(Unauthorized):
            async with Participant(gateway.ws_url, space="demo", id="ada", token="wrong"):
                pass
        with pytest.raises(GatewayError, match="no space 'other'"):
            async with Participant(gateway.ws_url, space="other", id="ada", token=gateway.token_of("ada")):
                pass
        with pytest.raises(NotConnected):
            async with Participant(
                f"ws://127.0.0.1:{free_port}", space="demo", id="ada", token="t", first_connect_seconds=0.2
            ):
                pass
        with pytest.raises(ConfigError):
            async with Participant("localhost:8080", space="demo", id="ada", token="t"):
                pass


async def test_error_in_the_block_is_raised_unwrapped(joined: Joined) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with joined("ada"):
            raise LookupError("mine")


async def test_cancelling_the_block_leaves_the_space(gateway: RunningGateway, joined: Joined) -> None:
    inside = anyio.Event()

    async def stay() -> None:
        async with joined("ada") as ada:
            inside.set()
            await ada.run_forever()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stay)
            await inside.wait()
            tasks.cancel_scope.cancel()
        await until(lambda: not gateway.service.connections)


async def test_run_forever_raises_the_error_that_ended_the_connection(joined: Joined) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with joined("coder") as first:
            async with joined("coder"):
                with pytest.raises(GatewayError, match="another connection joined"):
                    await first.run_forever()
            with pytest.raises(NotConnected):
                await first.chat("anybody?")


async def test_failing_background_task_ends_nothing_else(joined: Joined, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mew_agent")
    async with joined("ada") as ada:

        async def fail(error: Exception) -> None:
            raise error

        def fail_on_envelope(_: Envelope) -> None:
            raise NotConnected("ws://handled")

        ada.start_soon(fail, ValueError("mine"))
        ada.start_soon(fail, NotConnected("ws://failed"))
        ada.on("test/handled")(fail_on_envelope)
        ada.listeners.emit(Envelope.write("test/handled", id="1", ts="t", sender="bob"))
        await until(lambda: "not connected to the gateway at ws://failed" in caplog.text)
        await until(lambda: "event handler failed: not connected to the gateway at ws://handled" in caplog.text)
        assert "ValueError: mine" in caplog.text
        assert ada.is_joined
        assert "in fail_on_envelope" in caplog.text  # the author of a handler needs its traceback


def test_participant_can_be_built_before_an_event_loop_runs(free_port: int) -> None:
    me = Participant(f"ws://127.0.0.1:{free_port}", space="demo", id="ada", token="t", first_connect_seconds=0.2)

    @me.tool
    def shout(text: str) -> str:
        return text.upper()

    with pytest.raises(NotConnected):
        anyio.run(me.take_part)


async def test_take_part_lasts_until_the_participant_leaves(gateway: RunningGateway, joined: Joined) -> None:
    me = joined("bob")

    @me.on_chat
    async def leave(chat: ChatReceived) -> None:
        await me.aclose()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with joined("ada") as ada, anyio.create_task_group() as tasks:
            tasks.start_soon(me.take_part)
            await until(lambda: "bob" in ada.peers)
            await ada.chat("that is all")
        assert not me.is_joined
