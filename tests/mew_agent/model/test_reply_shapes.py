"""Every recorded shape of a reply, read over real HTTP by the agent's client and by the meter's relay alike."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest

from mew_agent.context.history import History
from mew_agent.context.policy import MEW
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.model_calls import ConversationOptions
from mew_agent.errors import ContextOverflow, ModelError
from mew_agent.model.interface import Message, ModelReply, ModelRequest, Window
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.model.usage import Usage
from mew_agent.parts.meter.calls import MeasuredCalls
from mew_agent.parts.meter.main_line import MainLine, MeteredCall
from mew_agent.parts.meter.replies import Reply
from mew_agent.parts.meter.request_facts import CallFacts, digest_of
from mew_agent.parts.shared.relay import serve_relay
from tests.mew_agent.model.reply_shapes import OVERFLOW_TEXT, SHAPES, Label, Shape, bare, piece, usage
from tests.support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.mew_agent.model.conftest import RawProvider
else:
    RawProvider = Any

GROK_CALLS = ((235, 373), (345, 0), (455, 420), (565, 12))
"""Prompt and cached tokens of calls of one conversation."""

ASK = ModelRequest((Message("user", "How long is the Elbe?"),))
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}


def label_of(found: Usage | None) -> Label:
    if found is None or found.contradicts_itself:
        return "unknown"
    return "reported" if found.is_plain else "provisional"


def check(shape: Shape, found: Usage | None) -> None:
    """Compare what was read with what is true."""
    assert label_of(found) == shape.label
    if shape.figures is None or found is None:
        assert shape.figures is None
        return
    assert (found.prompt_tokens, found.total_tokens) == shape.figures
    assert shape.cached is None or found.cached_tokens == shape.cached
    assert found.billed.total_tokens == (shape.spent or shape.figures[1])


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.api == "chat"])
async def test_agent_reads_each_recorded_shape(provider: RawProvider, name: str) -> None:
    shape = SHAPES[name]
    provider.answers = [provider.body(shape.body, shape.content_type)]
    model = OpenAIModel("m", provider.base_url, "sk-key", max_retries=0)
    try:
        with anyio.fail_after(PATIENCE_SECONDS):
            found = await outcome_of(model)
    finally:
        await model.aclose()
    if shape.label == "failed":
        assert isinstance(found, ModelError)
        assert isinstance(found, ContextOverflow) == (OVERFLOW_TEXT.encode() in shape.body)
        return
    assert isinstance(found, ModelReply), str(found)
    assert found.text == shape.text
    check(shape, found.usage)


@asynccontextmanager
async def conversing(provider: RawProvider) -> AsyncIterator[Conversation]:
    """An agent's conversation with the provider. Its window is known."""
    model = OpenAIModel("m", provider.base_url, "sk-key", max_retries=0)
    tracker = Tracker(History(), MEW, Window(200_000, "loaded"), "m")
    conversation = Conversation(model, tracker, MemoryStore(), ConversationOptions(system_prompt="Be brief."))
    with anyio.fail_after(PATIENCE_SECONDS):
        yield conversation
    await model.aclose()


async def ask(conversation: Conversation, number: int = 0) -> None:
    """One question and its answer."""

    async def prepare() -> None:
        await conversation.state.add_user_message("How long?", sender="ada", envelope_id=f"q{number}")

    async def ignore(_event: object) -> None: ...

    await conversation.begin_turn()
    async with conversation.calls.lock:
        await prepare()
        await conversation.calls.main(ignore)
    conversation.end_turn()


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.api == "chat"])
async def test_agent_shows_each_recorded_shape_with_its_label(provider: RawProvider, name: str) -> None:
    shape = SHAPES[name]
    provider.answers = [provider.body(shape.body, shape.content_type)]
    async with conversing(provider) as conversation:
        with suppress(ModelError):
            await ask(conversation)
        status = conversation.status()
        report = status.context
    assert report is not None
    assert report.basis == ("unknown" if shape.label == "failed" else shape.label)
    assert status.tokens == (shape.figures and shape.figures[1])
    assert report.spending is not None
    assert (report.spending.spent_tokens is None) is (shape.figures is None)


async def test_another_part_in_the_cache_is_no_truncation(provider: RawProvider) -> None:
    parts = [usage(prompt, 90, prompt_tokens_details={"cached_tokens": cached}) for prompt, cached in GROK_CALLS]
    bodies = [Shape((piece("1094 km"), piece(finish="stop"), bare(usage=one))).body for one in parts]
    provider.answers = [provider.body(body, "text/event-stream") for body in bodies]
    async with conversing(provider) as conversation:
        for number, (prompt, _) in enumerate(GROK_CALLS):
            await ask(conversation, number)
            assert (conversation.status().tokens, conversation.tracker.measurement.basis) == (prompt + 90, "reported")
            assert conversation.tracker.truncation is None


async def outcome_of(model: OpenAIModel) -> object:
    """The reply, or the error in place of it."""
    try:
        async with aclosing(model.stream(ASK)) as stream:
            return [event async for event in stream][-1]
    except ModelError as error:
        return error


@dataclass
class Observed:
    """A `CallObserver` that records the calls that ended."""

    line: MainLine = field(default_factory=MainLine)
    ended: list[MeteredCall] = field(default_factory=list)

    def begin(self, facts: CallFacts) -> MeteredCall:
        return self.line.begin(facts)

    def end(self, call: MeteredCall, reply: Reply | None) -> None:
        self.line.end(call, reply, "2026-01-31T12:00:00Z")
        self.ended.append(call)


@asynccontextmanager
async def metered(provider: RawProvider) -> AsyncIterator[tuple[Observed, httpx2.AsyncClient]]:
    """A relay in front of the provider, and a client of it."""
    observed = Observed()
    async with (
        serve_relay(provider.base_url, MeasuredCalls(observed)) as url,
        httpx2.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=PATIENCE_SECONDS) as client,
    ):
        yield observed, client


@pytest.mark.parametrize("name", SHAPES)
async def test_meter_reads_each_recorded_shape(provider: RawProvider, name: str) -> None:
    shape = SHAPES[name]
    provider.answers = [provider.body(shape.body, shape.content_type)]
    asked = {"model": "m", "messages": [{"role": "user", "content": "How long?"}], "input": "How long?"}
    async with metered(provider) as (observed, client):
        answer = await client.post(PATHS[shape.api], json=asked)
    assert answer.content == shape.body
    [call] = observed.ended
    if shape.label == "failed":
        assert call.reply is None
        return
    assert call.reply is not None
    check(shape, call.usage)
    assert shape.calls is None or call.reply.tool_calls == frozenset(map(digest_of, shape.calls))


def test_shapes_of_many_hosts_are_held() -> None:
    assert len({name.partition(":")[0] for name in SHAPES}) >= 40
