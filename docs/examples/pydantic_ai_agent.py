"""A pydantic-ai agent as a participant that reports its provider's usage: `mew run pydantic_ai_agent.py`."""

import os

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from mew_agent import ChatReceived, Participant, run

provider = OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ.get("OPENAI_API_KEY", "none"))
agent = Agent(OpenAIChatModel(os.environ["OPENAI_MODEL"], provider=provider))
messages: list[ModelMessage] = []
me = Participant.from_environment()


# Handlers are registered before joining, so that no chat is missed.
@me.on_chat
async def answer(chat: ChatReceived) -> None:
    """Answer a chat and report the usage of the call."""
    if chat.is_to_me:
        result = await agent.run(chat.text, message_history=messages)
        messages[:] = result.all_messages()
        last = next(one for one in reversed(messages) if isinstance(one, ModelResponse)).usage
        usage = {"input_tokens": last.input_tokens, "output_tokens": last.output_tokens}
        await me.report_context(usage=usage, window=8192, messages=len(messages))
        await chat.reply(result.output)


@me.on_compact
async def compact(_request: object) -> None:
    """Keep the last exchange."""
    del messages[:-2]


run(me.take_part)
