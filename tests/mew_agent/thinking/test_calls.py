"""Calls of an agent: each on record with its role, and only main calls move the accounts; the model is real HTTP."""

from collections.abc import Callable

import pytest

from mew_agent.errors import ModelError
from mew_agent.history import History
from mew_agent.model.interface import Message, ModelReply, ModelRequest, ToolCall
from mew_agent.store import CallRole
from mew_agent.thinking.calls import with_own_ids
from tests.support.talk import Talking

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
