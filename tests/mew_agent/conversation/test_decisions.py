"""When the policy is asked, and when its decisions are carried out; the model is real HTTP."""

from collections.abc import Callable

import pytest
from mew_protocol.payloads.participant import Compact, Forget

from mew_agent.model.interface import Window
from tests.support.talk import Talk, Talking, filled, ignore


async def asked_once(talk: Talk, question: str) -> None:
    """Ask a question without carrying out pending decisions."""

    async def prepare() -> None:
        await talk.conversation.state.add_user_message(question, sender="ada", envelope_id="q")

    await talk.conversation.begin_turn()
    await talk.conversation.call(ignore, prepare)
    talk.conversation.end_turn()


async def nearly_full(talk: Talk, text: Callable[[int], str]) -> None:
    """Talk for three turns, after which the policy has decided to compact."""
    await talk.turn("One.")
    await talk.turn("Two.")
    await asked_once(talk, text(200))
    assert "near_limit" in talk.words


NEARLY_FULL = ((100, 10, 110), (200, 10, 210), (1900, 10, 1910), (50, 10, 60))


async def test_a_decided_compaction_waits_for_the_end_of_the_turn(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking(window_tokens=2048, fixed_usage=NEARLY_FULL) as talk:
        await nearly_full(talk, text)
        assert "compacting" not in talk.words
        await talk.conversation.apply_pending()
        assert talk.words.count("compacting") == 1
        await talk.conversation.apply_pending()
        assert talk.words.count("compacting") == 1


@pytest.mark.parametrize("make_room", ["compact", "forget"])
async def test_a_control_that_makes_room_cancels_a_decided_compaction(
    talking: Talking, text: Callable[[int], str], make_room: str
) -> None:
    async with talking(window_tokens=2048, fixed_usage=NEARLY_FULL) as talk:
        await nearly_full(talk, text)
        conversation = talk.conversation
        if make_room == "compact":
            assert not (await conversation.compact(Compact())).skipped
        else:
            assert await conversation.forget(Forget(direction="oldest", entries=2))
        await conversation.apply_pending()
        assert "compacting" not in talk.words


async def test_a_request_that_would_not_fit_is_compacted_first(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking(window_tokens=2048) as talk:
        await filled(talk, text, below=0.6)
        assert "compacting" not in talk.words
        await talk.turn(text(700))
        assert talk.words.count("compacting") == 1
        last = talk.conversation.tracker.last_compaction
        assert last is not None
        assert last.trigger == "would_overflow"
        assert all(request.status == 200 for request in talk.server.requests)


async def test_a_new_window_changes_the_threshold_at_once(talking: Talking) -> None:
    async with talking() as talk:
        await talk.turn("One.")
        tokens = talk.now.tokens
        await talk.conversation.change_window(Window(4000, "loaded", "server"))
        status = talk.statuses[-1]
        assert (status.tokens, status.max_tokens) == (tokens, 4000)
        assert status.context is not None
        assert (status.context.compact_at_tokens, status.context.max_tokens_basis) == (3600, "loaded")
        count = len(talk.statuses)
        await talk.conversation.change_window(Window(4000, "loaded", "server"))
        assert len(talk.statuses) == count


async def test_a_server_that_truncates_the_prompt_is_reported(talking: Talking) -> None:
    async with talking(window=8192, fixed_usage=[(2000, 20, 2020), (1200, 20, 1220), (1250, 20, 1270)]) as talk:
        for number in range(3):
            await talk.turn(f"Question {number}?")
    assert talk.words == ["active", "truncated_by_server", "active"]
