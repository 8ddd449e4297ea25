"""A CrewAI agent in a space: `mew run crewai_agent.py`."""

import os

from crewai import LLM, Agent
from crewai.tools import tool

from mew_agent import Participant, run
from mew_agent.parts.integrations import answer_chats, from_crewai


@tool
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


model = LLM(model=os.environ["OPENAI_MODEL"], provider="openai")
agent = Agent(role="helper", goal="Answer.", backstory="You are brief.", llm=model, tools=[count_words])
me = Participant.from_environment()
answer_chats(me, lambda text, old: agent.akickoff([*old, {"role": "user", "content": text}]), from_crewai, window=8192)
run(me.take_part)
