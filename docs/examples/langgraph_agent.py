"""A LangGraph agent in a space: `mew run langgraph_agent.py`."""

import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

from mew_agent import Participant, run
from mew_agent.parts.integrations import answer_chats, from_langgraph


def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


graph = create_agent(ChatOpenAI(model=os.environ["OPENAI_MODEL"]), [count_words])
me = Participant.from_environment()
answer_chats(me, lambda text, old: graph.ainvoke({"messages": [*old, ("user", text)]}), from_langgraph, window=8192)
run(me.take_part)
