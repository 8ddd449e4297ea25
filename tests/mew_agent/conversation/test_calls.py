"""Calls of an agent: each on record with its role, and only main calls move the accounts; the model is real HTTP."""

from collections.abc import Callable

import anyio
import pytest

from mew_agent.context.history import History
from mew_agent.context.store import CallRole
from mew_agent.conversation.calls import with_own_ids
from mew_agent.conversation.model_calls import CallInterrupted
from mew_agent.errors import ModelError
from mew_agent.model.interface import Message, ModelReply, ModelRequest, ToolCall
from tests.support.talk import Talk, Talking

ASIDE = ModelRequest((Message("user", "Is this for you?"),))


@pytest.mark.parametrize("role", ["classification", "utility"])
async def test_m12_a_call_beside_the_conversation_is_on_record_and_moves_no_figure(
    talking: Talking, role: CallRole
) -> None:
    async with talking(fixed_usage=((100, 20, 120), (500, 10, 510), (150, 20, 170))) as talk:
        await talk.turn("One.")
        before = talk.now
        await talk.conversation.aside(ASIDE, role)
        assert talk.now == before
        await talk.turn("Two.")
        assert talk.now.tokens == 170
        calls = await talk.conversation.transcript.store.calls()
        assert [(call.role, call.usage and call.usage.total_tokens) for call in calls] == [
            ("main", 120),
            (role, 510),
            ("main", 170),
        ]
        assert [call.level for call in calls] == ["healthy", None, "healthy"]
        assert [call.limit_tokens for call in calls] == [8192, None, 8192]


async def test_a_failed_call_beside_the_conversation_is_on_record_and_troubles_nobody(talking: Talking) -> None:
    async with talking() as talk:
        talk.server.change(status=500)
        with pytest.raises(ModelError):
            await talk.conversation.aside(ASIDE, "classification")
        (call,) = await talk.conversation.transcript.store.calls()
        assert (call.role, call.usage) == ("classification", None)
        assert call.failed
        assert talk.conversation.trouble is None


async def test_what_stands_beside_the_items_makes_prompts_comparable_or_not(
    talking: Talking, text: Callable[[int], str]
) -> None:
    """A reminder in the request is a part of what is sent: prices over its arrival are projected, never exact."""
    async with talking() as talk:
        for _ in range(3):
            await talk.turn(text(60))
        ledger = talk.conversation.tracker.ledger
        items = talk.conversation.history.items
        assert ledger.price(items[1].seq, items[2].seq).basis == "exact"
        talk.conversation.remedies.reminders.add(text(40), at="t")
        await talk.turn(text(60))
        asked = talk.conversation.history.items[6]
        assert ledger.price(asked.seq - 1, asked.seq).basis == "projected"
        predicted = talk.conversation.tracker.drift
        assert predicted is not None
        assert abs(predicted.tokens) <= 30
        assert "- r1: Report" in str(talk.server.requests[-1].body["messages"])


def test_repeated_ids_of_tool_calls_become_new_ones() -> None:
    history = History()
    call = ToolCall("0", "look", "{}")
    history.append("assistant", "", id="a", at="t", tool_calls=[call])
    reply = with_own_ids(ModelReply("", (call, ToolCall("1", "look", "{}")), "tool_calls", None, "m"), history)
    assert reply.tool_calls[0].id.startswith("call_")
    assert reply.tool_calls[1].id == "1"


async def test_of_attempts_at_one_answer_only_the_kept_one_counts(talking: Talking, text: Callable[[int], str]) -> None:
    """The first attempt is refused as too large; the summary in between and the refusal are on record, apart."""
    async with talking(window=100_000, window_tokens=2048) as talk:
        while all(request.status == 200 for request in talk.server.requests):
            await talk.turn(text(200))
        calls = await talk.conversation.transcript.store.calls()
        assert [call.role for call in calls if call.usage is None] == ["main"], "the refused attempt"
        at = next(place for place, call in enumerate(calls) if call.failed)
        refused, *between, last = (call.role for call in calls[at:])
        assert (refused, set(between), last) == ("main", {"summary"}, "main")
        kept = [call.usage.total_tokens for call in calls if call.role == "main" and call.usage is not None]
        assert talk.now.tokens == kept[-1]
        assert talk.conversation.tracker.spent_tokens == sum(kept)


async def test_a_call_that_a_control_interrupts_or_a_turn_cancels_is_on_record(talking: Talking) -> None:
    async with talking(call_bound_seconds=0.05, chunk_delay_seconds=5.0) as talk:

        def begun(count: int) -> Callable[[], bool]:
            return lambda: len(talk.server.requests) == count and talk.server.requests[-1].chunks_sent > 0

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.turn, "A long thought.")
            await talk.server.wait_until(begun(1))
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(interrupted, talk)
            await talk.server.wait_until(begun(2))
            await talk.conversation.clear()
        calls = await talk.conversation.transcript.store.calls()
        assert [(call.role, call.usage, call.failed) for call in calls] == [
            ("main", None, "cancelled"),
            ("main", None, "a control interrupted this call"),
        ]


async def interrupted(talk: Talk) -> None:
    with pytest.raises(CallInterrupted):
        await talk.turn("Another one.")
