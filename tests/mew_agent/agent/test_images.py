"""Images in tool results: from the tool to the model, or named where the model takes none."""

from typing import Any

import pytest

from mew_agent.context.item_sizes import IMAGE_TOKENS
from tests.support.agents import StartAgent

DATA = "aGVsbG8="
SCRIPT: list[dict[str, Any]] = [{"tool_calls": [{"name": "look", "arguments": "{}"}]}, {"text": "I looked."}]


def look() -> dict[str, Any]:
    """Look at the scene."""
    return {"content": [{"type": "image", "mimeType": "image/png", "data": DATA}]}


async def test_an_image_of_a_tool_reaches_the_model(start_agent: StartAgent) -> None:
    async with start_agent(tools=(look,), script=SCRIPT) as s:
        assert await s.ask("what do you see?") == "I looked."
        assert f"data:image/png;base64,{DATA}" in str(s.server.requests[-1].body)
        (item,) = [item for item in s.agent.conversation.history.items if item.images]
        assert item.content == "[image of type image/png]"
        ledger = s.agent.conversation.tracker.ledger
        assert ledger.next_prompt_tokens < IMAGE_TOKENS  # the provider's report replaced it


async def test_a_model_without_images_answers_and_one_warning_says_so(
    start_agent: StartAgent, caplog: pytest.LogCaptureFixture
) -> None:
    async with start_agent(tools=(look,), script=SCRIPT, refuse_images=True) as s:
        assert await s.ask("what do you see?") == "I looked."
        assert await s.ask("and now?")
        assert "takes no images" in str(s.server.requests[-1].body)
        assert [request.status for request in s.server.requests].count(400) == 1
    assert sum("does not support images" in record.message for record in caplog.records) == 1
