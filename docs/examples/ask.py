"""Ask an agent, and read the answer while it is written: `mew run ask.py coder "What do you see?"`."""

import sys

import anyio

from mew_agent import Answered, Noticed, Participant, PeerError, Thinking, ToolCalled, Writing


async def main(agent: str, question: str) -> None:
    """Print the answer, and how full the agent is then."""
    async with Participant.from_environment() as me:
        async for piece in me.asking(agent, question):
            match piece:
                case Thinking(text) | Noticed(text):
                    print(f"  ({text.strip()})")
                case ToolCalled(name, arguments):
                    print(f"  [{name} {arguments}]")
                case Writing(text):
                    print(text, end="", flush=True)
                case Answered(context=context):
                    print(f"\n\n{agent} holds {context}")


if len(sys.argv) != 3:
    sys.exit("usage: mew run ask.py AGENT QUESTION")
try:
    anyio.run(main, sys.argv[1], sys.argv[2])
except PeerError as error:
    sys.exit(str(error))
