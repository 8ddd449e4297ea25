"""One exchange: events, the end, and the inactivity timeout."""

import anyio
import pytest

from mew_agent.errors import NoAnswer
from mew_agent.participant.answers.agent_answers import Exchange
from mew_agent.participant.answers.builder import AnswerBuilder, Writing
from mew_agent.participant.peers import PeerContext
from tests.support.waiting import PATIENCE_SECONDS


def exchange(silence_seconds: float = 10.0, status: str = "active") -> Exchange:
    context = PeerContext(status=status)
    answer = AnswerBuilder(may_use_tools=False)
    return Exchange("coder", "chat-1", "Hello?", answer, silence_seconds, context)


async def test_events_come_in_order_and_then_the_end() -> None:
    one = exchange()
    one.add(one.answer.add_text("Hi "))
    one.finish("Hi there.")
    assert [await one.next_event(), await one.next_event(), await one.next_event()] == [
        Writing("Hi "),
        Writing("there."),
        None,
    ]
    assert not one.needs_cancel


async def test_waiting_reader_is_woken_by_new_events() -> None:
    one = exchange()
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:

            async def answer() -> None:
                one.finish("Late.")

            tasks.start_soon(answer)
            assert await one.next_event() == Writing("Late.")


async def test_events_before_a_failure_are_read_first() -> None:
    one = exchange()
    one.add(one.answer.add_text("Half"))
    one.fail("agent_left", "gone")
    assert await one.next_event() == Writing("Half")
    with pytest.raises(NoAnswer, match="gone"):
        await one.next_event()
    one.finish("Too late.")
    assert one.answer.text == ""


async def test_inactivity_ends_the_exchange_and_needs_a_cancel() -> None:
    one = exchange(0.01, status="paused:lunch")
    with (
        anyio.fail_after(PATIENCE_SECONDS),
        pytest.raises(NoAnswer, match=r"for 0\.01 seconds \(it is paused\)") as caught,
    ):
        await one.next_event()
    assert caught.value.code == "agent_silent"
    assert one.needs_cancel


async def test_cancelled_wait_loses_no_event() -> None:
    one = exchange()
    with anyio.move_on_after(0):
        await one.next_event()
    one.finish("Still here.")
    assert await one.next_event() == Writing("Still here.")


async def test_exchange_is_about_its_own_reasoning_only() -> None:
    one = exchange()
    assert not one.is_about(None)
    one.begin("r-1")
    assert one.is_about("r-1")
    assert not one.is_about("r-2")
    one.begin(None)
    assert one.is_about("r-1")
