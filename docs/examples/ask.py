"""Ask an agent and read the answer as it is written: `mew run ask.py coder "What do you see?"`."""

import sys

from mew_agent import Answered, ContextNotice, Participant, Thinking, ToolCalled, Writing, run


async def main(agent: str, question: str) -> None:
    """Print the answer and the size of the agent's context."""
    async with Participant.from_environment() as me:
        async for piece in me.ask_agent(agent, question):
            match piece:
                case Thinking(text) | ContextNotice(text):
                    print(f"  ({text.strip()})")
                case ToolCalled(name, arguments):
                    print(f"  [{name} {arguments}]")
                case Writing(text):
                    print(text, end="", flush=True)
                case Answered(context=context):
                    print(f"\n\n{agent}: {context}")


if len(sys.argv) != 3:
    sys.exit("usage: mew run ask.py AGENT QUESTION")
run(main, sys.argv[1], sys.argv[2])
