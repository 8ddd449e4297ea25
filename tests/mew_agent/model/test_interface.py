"""The types that every model implementation shares, and the example in their module."""

import textwrap
from contextlib import aclosing
from dataclasses import FrozenInstanceError

import pytest

from mew_agent.model import interface
from mew_agent.model.interface import Message, Model, ModelIdentity, ModelReply, ModelRequest, TextDelta, Window
from mew_agent.model.openai_client import OpenAIModel


def test_the_openai_client_is_a_model() -> None:
    model: Model = OpenAIModel("gpt-4o")
    assert model.identity == ModelIdentity("gpt-4o", "https://api.openai.com/v1")


def test_a_request_is_immutable() -> None:
    request = ModelRequest((Message("user", "x"),))
    with pytest.raises(FrozenInstanceError):
        request.messages = ()  # type: ignore[misc]


async def test_the_example_in_the_docstring_is_a_model() -> None:
    source = textwrap.dedent((interface.__doc__ or "").partition("useful one:\n\n")[2])
    names = dict(vars(interface))
    exec(source, names)
    model: Model = names["EchoModel"]()
    async with aclosing(model.stream(ModelRequest((Message("user", "hello"),)))) as stream:
        events = [event async for event in stream]
    assert events == [TextDelta("hello"), ModelReply("hello", (), "stop", None, "echo")]
    assert await model.discover_window() == Window(8192, "loaded", "echo")
    assert await model.count_prompt(ModelRequest(())) is None
    await model.aclose()
