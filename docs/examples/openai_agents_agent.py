"""An agent of openai-agents in a space: `mew run openai_agents_agent.py`."""

import os

from agents import Agent, Runner, function_tool

from mew_agent import Participant, run
from mew_agent.parts.integrations import answer_chats, from_openai_agents


def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


agent = Agent("helper", tools=[function_tool(count_words)], model=os.environ["OPENAI_MODEL"])
me = Participant.from_environment()
answer_chats(
    me, lambda text, old: Runner.run(agent, [*old, {"role": "user", "content": text}]), from_openai_agents, window=8192
)
run(me.take_part)
