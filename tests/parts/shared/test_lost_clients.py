"""A client that is gone before the body of its request has ended is no failure of the server."""

import logging
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from mew_agent.parts.openai_api.openai_app import create_app
from mew_agent.parts.rehearsal import RehearsalOptions, RehearsalServer
from mew_agent.parts.shared.chat_participant import ChatParticipant

CHAT_API = create_app(ChatParticipant("ws://localhost:1", space="demo", person="bob", token="t"), api_key="key")
MODEL_API = RehearsalServer(RehearsalOptions()).app


@pytest.mark.parametrize("app", [CHAT_API, MODEL_API], ids=["mew serve", "rehearsal model"])
async def test_a_request_without_its_end_is_answered_and_not_logged(
    app: ASGIApp, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[Message] = [
        {"type": "http.disconnect"},
        {"type": "http.request", "body": b'{"model": ', "more_body": True},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return received.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer key")],
        "state": {},
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 400
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
