"""An agent in Python with a tool of its own; it warns when its context fills up."""

from secrets import randbelow
from typing import Annotated

from pydantic import Field

from mew_agent import Agent, LevelChanged, run

agent = Agent.from_environment(
    system_prompt="You roll dice for people. Use your tool; never make up a number.",
    context_token_limit=4096,
)


@agent.tool
def roll_dice(sides: Annotated[int, Field(ge=2, le=1000)] = 6, times: Annotated[int, Field(ge=1, le=10)] = 1) -> str:
    """Roll one die, once or several times."""
    return " and ".join(str(1 + randbelow(sides)) for _ in range(times))


@agent.on(LevelChanged)  # its own level; `on_context_level` receives the levels of all agents
async def warn(change: LevelChanged) -> None:
    """Tell Ada when little room is left."""
    if change.severity and change.tokens is not None:
        await agent.chat(f"I am {change.after}: {change.tokens:,} of {change.max_tokens:,} tokens.", to="ada")


run(agent.take_part)
