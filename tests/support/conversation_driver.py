"""One conversation with a real rehearsal model, for tests of what the two make of each other."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from mew_protocol.payloads.participant import Status

from mew_agent.context.history import History
from mew_agent.context.policy import MEW, Policy
from mew_agent.context.sqlite_store import MemoryStore, Store
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.conversation_events import ConversationEvent, StatusChanged
from mew_agent.conversation.model_calls import COUNT_SECONDS, ConversationOptions
from mew_agent.errors import ContextOverflow
from mew_agent.model.interface import ModelEvent, ModelReply, ToolSpec
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.parts.rehearsal import RehearsalServer, serve_rehearsal
from mew_agent.parts.rehearsal.tokenizer import count_request
from mew_agent.tokens.tokenizers import TextCounter
from tests.support.rehearsal_model import rehearsal_model, rehearsal_options
from tests.support.waiting import PATIENCE_SECONDS

TOOL = ToolSpec("look_up", "Looks something up.", {"type": "object", "properties": {"q": {"type": "string"}}})


def count_message(message: Mapping[str, object]) -> int:
    """Tokens of one message of a request, with its template overhead."""
    return count_request([message]) - count_request([])


async def ignore(_event: ModelEvent) -> None:
    """Ignore the event."""


def without_spending(status: Status) -> Status:
    """The status without what changes outside the conversation: the cost of calls, and the chats that wait."""
    assert status.context is not None
    return status.model_copy(update={"context": status.context.model_copy(update={"spending": None, "queued": None})})


@dataclass
class ConversationDriver:
    """One conversation with one rehearsal model; every announced status is kept."""

    server: RehearsalServer
    conversation: Conversation
    tools: tuple[ToolSpec, ...] = ()
    statuses: list[Status] = field(default_factory=list)
    turns: int = 0

    async def record_status(self, event: ConversationEvent) -> None:
        if isinstance(event, StatusChanged):
            self.statuses.append(event.status)

    @property
    def words(self) -> list[str | None]:
        return [status.status for status in self.statuses]

    @property
    def now(self) -> Status:
        return self.conversation.status()

    async def turn(self, text: str) -> ModelReply:
        """One question, one call, and what the policy wants afterwards."""
        self.turns += 1
        number = self.turns
        turn = await self.conversation.begin_turn()

        async def prepare() -> None:
            if not any(item.envelope_id == f"q{number}" for item in self.conversation.history.items):
                await self.conversation.state.add_user_message(text, sender="ada", envelope_id=f"q{number}")

        try:
            return await self.conversation.call(ignore, prepare)
        except ContextOverflow:
            await self.conversation.remove_turn(turn)
            raise
        finally:
            self.conversation.end_turn()
            await self.conversation.apply_pending()


@asynccontextmanager
async def start_conversation(
    *,
    policy: Policy = MEW,
    window: int | None = None,
    store: Store | None = None,
    call_bound_seconds: float = 30.0,
    keep_newest_items: int | None = None,
    tools: tuple[ToolSpec, ...] = (),
    system_prompt: str = "You keep records.",
    counter: TextCounter | None = None,
    model_class: type[OpenAIModel] = OpenAIModel,
    count_seconds: float = COUNT_SECONDS,
    **options: Any,
) -> AsyncIterator[ConversationDriver]:
    """A conversation with a rehearsal model, without a gateway. `options` are those of `RehearsalOptions`."""
    async with serve_rehearsal(rehearsal_options(**options)) as server:
        model = rehearsal_model(server.base_url, model_class=model_class)
        tracker = Tracker(
            history=History(),
            policy=policy,
            window=resolve_window(window or server.options.window_tokens),
            model="rehearsal",
        )
        driver: ConversationDriver
        conversation_options = ConversationOptions(
            system_prompt=system_prompt,
            tools=lambda: driver.tools,
            keep_newest_items=keep_newest_items,
            call_bound_seconds=call_bound_seconds,
            load_counter=lambda: counter,
            count_seconds=count_seconds,
        )
        conversation = Conversation(model, tracker, store or MemoryStore(), conversation_options)
        driver = ConversationDriver(server, conversation, tools)
        conversation.events.subscribe(driver.record_status)
        try:
            with anyio.fail_after(PATIENCE_SECONDS):
                yield driver
        finally:
            await model.aclose()
            if store is not None:
                await store.aclose()


StartConversation = Callable[..., AbstractAsyncContextManager[ConversationDriver]]


async def fill(driver: ConversationDriver, text: Callable[[int], str], *, below: float, tokens: int = 150) -> None:
    """Take turns until the reported figure is at least this part of the window."""
    while (driver.now.tokens or 0) < below * driver.conversation.tracker.window.max_tokens:
        await driver.turn(text(tokens))


def asked_tokens(question: str) -> int:
    """What one more question by ada takes in a prompt of the rehearsal model."""
    return count_message({"role": "user", "content": question, "name": "ada"})
