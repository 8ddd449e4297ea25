"""The shapes every model implementation shares."""

from dataclasses import FrozenInstanceError

import pytest

from mew_agent.model.interface import Message, Model, ModelIdentity, ModelRequest
from mew_agent.model.openai_client import OpenAIModel


def test_the_client_is_a_model() -> None:
    model: Model = OpenAIModel("gpt-4o")
    assert model.identity == ModelIdentity("gpt-4o", "https://api.openai.com/v1")


def test_a_request_cannot_change_while_it_is_under_way() -> None:
    request = ModelRequest((Message("user", "x"),))
    with pytest.raises(FrozenInstanceError):
        request.messages = ()  # type: ignore[misc]
