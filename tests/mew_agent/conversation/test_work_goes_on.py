"""After a compaction a task in the middle of its tools continues on its own, and an idle agent stays idle."""

import os
import random
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import anyio
from mew_protocol.payloads.participant import Compact

from mew_agent.context.history import History
from mew_agent.context.policy import MEW
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.conversation_events import ContextCompacted, ConversationEvent
from mew_agent.conversation.model_calls import CallInterrupted, ConversationOptions
from mew_agent.errors import ContextOverflow, ModelFailed
from mew_agent.model.interface import (
    Message,
    ModelEvent,
    ModelIdentity,
    ModelReply,
    ModelRequest,
    TextDelta,
    ToolCall,
    ToolSpec,
    Window,
)
from mew_agent.model.usage import Usage
from mew_agent.tools.results import ToolResult
from tests.support.conversation_driver import TOOL, ignore

TASKS = int(os.environ.get("MEW_TASKS", "200"))
TASKS_OF_ONE_AGENT = 8
WORDS = ("river", "station", "valve", "meter", "pump", "channel", "report", "winter", "gauge", "basin", "lock", "tide")


@dataclass
class CountingModel:
    """A model that asks for tools as often as the question says, and counts a token for each word."""

    random: random.Random
    window_tokens: int
    main_calls: int = 0
    identity: ModelIdentity = field(default_factory=lambda: ModelIdentity("counting", "test"))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        await anyio.lowlevel.checkpoint()
        prompt = sum(len(message.content.split()) + 4 for message in request.messages)
        if prompt >= self.window_tokens:
            raise ContextOverflow("test", "counting", limit_tokens=self.window_tokens)
        is_summary = request.max_output_tokens is not None
        text, calls = (self._summary(), ()) if is_summary else self._reply(request.messages)
        yield TextDelta(text)
        completion = len(text.split()) + 6 * len(calls)
        usage = Usage(prompt, completion, prompt + completion) if self.random.random() < 0.95 else None
        yield ModelReply(text, calls, "tool_calls" if calls else "stop", usage, "counting")

    def _reply(self, messages: tuple[Message, ...]) -> tuple[str, tuple[ToolCall, ...]]:
        self.main_calls += 1
        asked = max(at for at, message in enumerate(messages) if message.content.startswith("Task "))
        made = sum(message.role == "assistant" for message in messages[asked:])
        if made >= int(messages[asked].content.split()[3]):
            return f"{messages[asked].content.split(':')[0]} is done.", ()
        return "", (ToolCall(f"call-{self.main_calls}", TOOL.name, "{}"),)

    def _summary(self) -> str:
        match self.random.randrange(4):
            case 0:
                raise ModelFailed("test", "counting", "broken")
            case 1:
                return "ok"
            case _:
                return "## Goal and request\n- Tasks about the river station."

    async def discover_window(self) -> Window | None:
        return None

    async def count_prompt(self, _request: ModelRequest) -> int | None:
        return None

    async def aclose(self) -> None:
        pass


@dataclass
class Worker:
    """One agent's conversation, driven as a turn drives it."""

    seed: int
    compacted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        window = self.random.randrange(700, 1600)
        self.model = CountingModel(self.random, window)
        tracker = Tracker(History(), MEW, Window(window, "configured"), "counting")
        tools: tuple[ToolSpec, ...] = (TOOL,)
        bound_seconds = self.random.choice((0.0, 30.0))
        options = ConversationOptions(system_prompt="You work.", tools=lambda: tools, call_bound_seconds=bound_seconds)
        self.conversation = Conversation(self.model, tracker, MemoryStore(), options)
        self.conversation.events.subscribe(self.count)

    async def count(self, event: ConversationEvent) -> None:
        if isinstance(event, ContextCompacted):
            moment = "idle" if self.conversation.state.answering_turn is None else "middle"
            self.compacted[moment] += 1

    def words(self, most: int) -> str:
        return " ".join(self.random.choice(WORDS) for _ in range(self.random.randrange(1, most)))

    async def task(self, number: int) -> str:
        """Answer one question with as many tool rounds as it says, while others may request compactions."""
        conversation, rounds = self.conversation, self.random.randrange(4)
        await conversation.begin_turn()
        name, text = f"q{number}", f"Task {number} needs {rounds} tools: {self.words(60)}"

        async def prepare() -> None:
            if not any(item.envelope_id == name for item in conversation.history.items):
                await conversation.state.add_user_message(text, sender="ada", envelope_id=name)

        try:
            async with anyio.create_task_group() as others:
                while True:
                    if self.random.random() < 0.1:
                        others.start_soon(conversation.compact, Compact())
                    try:
                        reply = await conversation.call(ignore, prepare)
                    except CallInterrupted:
                        continue
                    if not reply.tool_calls:
                        return reply.text
                    results = {call.id: ToolResult(self.words(120)) for call in reply.tool_calls}
                    await conversation.check_results(reply.tool_calls, results)
                    await conversation.state.close_open_calls("", {key: one.text for key, one in results.items()})
                    await conversation.apply_pending()
            raise AssertionError("the task ended without an answer")
        finally:
            conversation.end_turn()
            await conversation.apply_pending()


async def test_no_task_stalls_after_a_compaction() -> None:
    compacted: Counter[str] = Counter()
    for seed in range(TASKS // TASKS_OF_ONE_AGENT):
        worker = Worker(seed)
        with anyio.fail_after(30):
            for number in range(TASKS_OF_ONE_AGENT):
                assert (await worker.task(number)).startswith(f"Task {number} "), seed
        calls = worker.model.main_calls
        if worker.random.random() < 0.5:
            await worker.conversation.compact(Compact())
        await anyio.lowlevel.checkpoint()
        assert worker.model.main_calls == calls, "an idle agent stays idle"
        assert not worker.conversation.compacting.is_running
        assert not worker.conversation.history.open_calls()
        compacted += worker.compacted
    assert compacted["middle"] > TASKS // 20
    assert compacted["idle"] > TASKS // 40
