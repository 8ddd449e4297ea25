"""A pydantic-ai agent in a space: `mew run pydantic_ai_agent.py`."""

import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

from mew_agent import Participant, run
from mew_agent.parts.integrations import answer_chats, from_pydantic_ai


def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


agent = Agent(OpenAIChatModel(os.environ["OPENAI_MODEL"]), tools=[count_words])
me = Participant.from_environment()
answer_chats(me, lambda text, history: agent.run(text, message_history=history), from_pydantic_ai, window=8192)
run(me.take_part)
