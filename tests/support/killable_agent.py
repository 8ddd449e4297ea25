"""A program for tests that kill it: an agent with tools, whose calls are recorded in the file `NOTES`.

It prepares itself once and then runs one agent after another, each in a process of its own: a line on standard input
starts one, its process id is printed, and so are the ids of those that have ended. Starting one takes milliseconds.
"""

import os
import sys

import anyio

import mew_agent.agent.agent
import mew_agent.context.sqlite_store
import mew_agent.model.openai_client  # noqa: F401 - imported once, before the processes of the agents exist
from mew_agent.agent.agent import Agent
from mew_agent.program import run


def run_agent() -> None:
    """Run one agent until it is killed."""
    me = Agent.from_environment()

    @me.tool
    def note(word: str) -> str:
        """Write a word down."""
        with open(os.environ["NOTES"], "a", encoding="utf-8") as notes:  # noqa: PTH123 - one line, appended at once
            notes.write(f"{word}\n")
        return f"noted {word}"

    @me.tool
    async def hang() -> None:
        """Write down that it was called, and never return."""
        note("hang")
        await anyio.sleep_forever()

    run(me.take_part)


def main() -> None:
    """Start an agent for each line."""
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            run_agent()
            os._exit(0)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
