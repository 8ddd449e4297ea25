"""A pydantic-ai agent as a participant that reports its provider's usage: `mew run pydantic_ai_agent.py`."""

import os

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from mew_agent import ChatReceived, Participant, run


async def main() -> None:
    """Answer chats, report each call's usage, and drop all but the last exchange when asked to compact."""
    key = os.environ.get("OPENAI_API_KEY", "none")
    provider = OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key=key)
    agent = Agent(OpenAIChatModel(os.environ["OPENAI_MODEL"], provider=provider))
    messages: list[ModelMessage] = []

    async with Participant.from_environment() as me:

        @me.on_chat
        async def answer(chat: ChatReceived) -> None:
            if chat.is_to_me:
                result = await agent.run(chat.text, message_history=messages)
                messages[:] = result.all_messages()
                last = next(one for one in reversed(messages) if isinstance(one, ModelResponse)).usage
                usage = {"input_tokens": last.input_tokens, "output_tokens": last.output_tokens}
                await me.report_context(usage=usage, window=8192, messages=len(messages))
                await chat.reply(result.output)

        @me.on_compact
        async def compact(_request: object) -> None:
            del messages[:-2]

        await me.run_forever()


run(main)
