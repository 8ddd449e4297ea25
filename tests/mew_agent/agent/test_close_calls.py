"""A server with a counter counts a request near the edge of the window before the policy decides."""

import base64
import random
from typing import Any

import anyio
import pytest
from mew_protocol.context_report import answer_reserve_tokens

from mew_agent.context.facts import PromptCounted
from mew_agent.context.history import History
from mew_agent.context.policy import MEW
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.conversation_events import ConversationEvent, StatusChanged
from mew_agent.conversation.model_calls import ConversationOptions
from mew_agent.model.interface import ModelEvent
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal
from mew_agent.parts.rehearsal.tokenizer import count_request
from mew_agent.tokens.projection import features
from tests.support.rehearsal_model import rehearsal_model
from tests.support.waiting import PATIENCE_SECONDS

SYSTEM = "You keep records."
TEXT = base64.b64encode(random.Random(7).randbytes(2400)).decode()
"""Text whose tokens the rehearsal model counts lower than our features do at first."""


async def ignore(_event: ModelEvent) -> None:
    return


async def ask(window_tokens: int, **options: Any) -> tuple[list[str | None], Tracker]:
    """Ask one question about the text. Returns the status words and the accounts."""
    words: list[str | None] = []
    async with serve_rehearsal(RehearsalOptions(window_tokens=window_tokens, **options)) as server:
        model = rehearsal_model(server.base_url)
        tracker = Tracker(History(), MEW, resolve_window(window_tokens), "rehearsal")

        async def record(event: ConversationEvent) -> None:
            if isinstance(event, StatusChanged):
                words.append(event.status.status)

        async def prepare() -> None:
            if not len(conversation.history.items):
                await conversation.state.add_user_message(TEXT, sender="ada", envelope_id="q1")

        conversation = Conversation(model, tracker, MemoryStore(), ConversationOptions(system_prompt=SYSTEM))
        conversation.events.subscribe(record)
        await conversation.begin_turn()
        with anyio.fail_after(PATIENCE_SECONDS):
            await conversation.call(ignore, prepare)
        await model.aclose()
    return words, tracker


def true_prompt_tokens() -> int:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TEXT, "name": "ada"}]
    return count_request(messages, [])


async def test_a_fitting_request_is_sent_despite_a_larger_projection() -> None:
    window = (true_prompt_tokens() + 200) * 21 // 20
    projected = round(features(SYSTEM) + features(TEXT))
    assert projected + answer_reserve_tokens(window) > window > true_prompt_tokens() + answer_reserve_tokens(window)
    words, tracker = await ask(window)
    assert not [word for word in words if word and word.startswith("compaction")]
    assert tracker.measurement.usage is not None
    assert tracker.measurement.usage.prompt_tokens == true_prompt_tokens()


async def test_a_count_holds_only_for_the_request_it_counted() -> None:
    history = History()
    tracker = Tracker(history, MEW, resolve_window(4096), "m")
    tracker.describe_prefix(SYSTEM, "")
    tracker.item_added(history.append("user", "hello", id="a", at="t"))
    tracker.ledger.apply(PromptCounted(3999))
    report = tracker.report()
    assert (report.next_prompt_tokens, report.next_prompt_basis) == (3999, "server_counted")
    assert tracker.snapshot().next_prompt_tokens == 3999
    tracker.item_added(history.append("user", "more", id="b", at="t"))
    assert tracker.report().next_prompt_basis == "heuristic"


@pytest.mark.parametrize(("tokens", "is_close"), [(100, False), (2047, False), (2049, True), (4000, True)])
def test_before_the_first_report_half_the_window_is_a_close_call(tokens: int, is_close: bool) -> None:
    tracker = Tracker(History(), MEW, resolve_window(4096), "m")
    tracker.ledger.projected_tokens = tokens
    assert tracker.is_close_call() is is_close
