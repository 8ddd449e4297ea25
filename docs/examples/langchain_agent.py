"""A LangChain model as a participant that reports its provider's usage: `mew run langchain_agent.py`."""

import os

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_openai import ChatOpenAI

from mew_agent import ChatReceived, Participant, run


async def main() -> None:
    """Answer chats, report each call's usage, and drop all but the last exchange when asked to compact."""
    # Without `use_responses_api=False` it may choose the other API of OpenAI.
    model = ChatOpenAI(model=os.environ["OPENAI_MODEL"], stream_usage=True, use_responses_api=False)
    messages: list[BaseMessage] = []

    async with Participant.from_environment() as me:

        @me.on_chat
        async def answer(chat: ChatReceived) -> None:
            if chat.is_to_me:
                messages.append(HumanMessage(chat.text))
                reply = await model.ainvoke(messages)
                messages.append(reply)
                if isinstance(reply, AIMessage) and reply.usage_metadata is not None:
                    await me.report_context(usage=dict(reply.usage_metadata), window=8192, messages=len(messages))
                else:
                    await me.report_context(unknown="usage_unavailable")
                await chat.reply(str(reply.content))

        @me.on_compact
        async def compact(_request: object) -> None:
            del messages[:-2]

        await me.run_forever()


run(main)
