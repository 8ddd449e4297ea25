"""A LangChain model as a participant that reports its provider's usage: `mew run langchain_agent.py`."""

import os

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_openai import ChatOpenAI

from mew_agent import ChatReceived, Participant, run

# Without `use_responses_api=False` it may choose the other API of OpenAI.
model = ChatOpenAI(model=os.environ["OPENAI_MODEL"], stream_usage=True, use_responses_api=False)
messages: list[BaseMessage] = []
me = Participant.from_environment()


# Handlers are registered before joining, so that no chat is missed.
@me.on_chat
async def answer(chat: ChatReceived) -> None:
    """Answer a chat and report the usage of the call."""
    if chat.is_to_me:
        asked = [*messages, HumanMessage(chat.text)]
        reply = await model.ainvoke(asked)
        messages[:] = [*asked, reply]
        if reply.usage_metadata is None:
            await me.report_context(unknown="usage_unavailable")
        else:
            await me.report_context(usage=reply.usage_metadata, window=8192, messages=len(messages))
        await chat.reply(str(reply.content))


@me.on_compact
async def compact(_request: object) -> None:
    """Keep the last exchange."""
    del messages[:-2]


run(me.take_part)
