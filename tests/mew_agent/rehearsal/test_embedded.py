"""The rehearsal model without a server of one's own."""

from contextlib import aclosing

from mew_agent.model.interface import Message, ModelReply, ModelRequest
from mew_agent.rehearsal.embedded import EmbeddedRehearsal

ASK = ModelRequest((Message("user", "What is the tide?"),))


async def reply_of(model: EmbeddedRehearsal) -> ModelReply:
    last = None
    async with aclosing(model.stream(ASK)) as events:
        async for event in events:
            last = event
    assert isinstance(last, ModelReply)
    return last


async def test_the_server_starts_at_first_use_and_after_close() -> None:
    model = EmbeddedRehearsal(4096)
    try:
        assert "What is the tide?" in (await reply_of(model)).text
        await model.aclose()
        assert "What is the tide?" in (await reply_of(model)).text
    finally:
        await model.aclose()


async def test_the_configured_window_and_counts_are_used() -> None:
    model = EmbeddedRehearsal(4096)
    try:
        window = await model.discover_window()
        usage = (await reply_of(model)).usage
        assert window is not None
        assert window.max_tokens == 4096
        assert usage is not None
        assert await model.count_prompt(ASK) in (None, usage.prompt_tokens)
    finally:
        await model.aclose()
    assert model.identity.endpoint == "rehearsal"


async def test_closing_an_unused_model_starts_nothing() -> None:
    await EmbeddedRehearsal().aclose()
