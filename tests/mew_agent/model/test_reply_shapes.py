"""Every recorded shape of a reply, read over real HTTP by the agent's client and by the meter's relay alike."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest

from mew_agent.errors import ContextOverflow, ModelError
from mew_agent.meter.facts import CallFacts
from mew_agent.meter.main_line import MainLine, MeteredCall
from mew_agent.meter.relay import serve_relay
from mew_agent.meter.replies import Reply
from mew_agent.model.interface import Message, ModelReply, ModelRequest
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.model.usage import Usage
from tests.mew_agent.model.reply_shapes import OVERFLOW_TEXT, SHAPES, Label, Shape
from tests.support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.mew_agent.model.conftest import RawProvider
else:
    RawProvider = Any

ASK = ModelRequest((Message("user", "How long is the Elbe?"),))
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}


def label_of(usage: Usage | None) -> Label:
    if usage is None or usage.contradicts_itself:
        return "unknown"
    return "reported" if usage.is_plain else "provisional"


def check(shape: Shape, usage: Usage | None) -> None:
    """Compare what was read with what is true."""
    assert label_of(usage) == shape.label
    if shape.figures is None or usage is None:
        assert shape.figures is None
        return
    assert (usage.prompt_tokens, usage.total_tokens) == shape.figures
    assert shape.cached is None or usage.cached_tokens == shape.cached
    assert usage.billed.total_tokens == (shape.spent or shape.figures[1])


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
        serve_relay(provider.base_url, observed) as url,
        httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS) as client,
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


def test_shapes_of_many_hosts_are_held() -> None:
    assert len({name.partition(":")[0] for name in SHAPES}) >= 40
