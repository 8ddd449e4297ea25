"""The types of agents of this part, for the table `mew_agent.commands`."""

from typing import Final

from mew_agent.cli.app.groups import OtherName, RunnableAgent, Sections

_RUN: Final = RunnableAgent("mew_agent.parts.simple_agents.run_simple:run")

COMMANDS: Final[Sections] = {
    "Types of agents": {"echo": _RUN, "calculator": _RUN, "fulfiller": _RUN},
    "Other names": {"agent start": OtherName("agent run", options={"-t": "--type"})},
}
