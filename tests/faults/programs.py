"""The programs of a fault run, each in a process of its own: `programs.py agent|member|mew|acp`."""

import json
import mmap
import struct
import sys
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import anyio

from mew_agent.program import run


def run_agent() -> None:
    """An agent, configured by the environment."""
    from mew_agent.agent.agent import Agent

    run(Agent.from_environment().take_part)


def run_member(first: int, pause_seconds: float) -> None:
    """A member that sends numbered chats, and prints the number before and the outcome after each."""
    from mew_agent.errors import NotAccepted, NotConfirmed, NotConnected
    from mew_agent.participant.participant import Participant

    outcomes = {NotAccepted: "refused", NotConfirmed: "unknown", NotConnected: "never sent"}

    async def send() -> None:
        async with Participant.from_environment() as me:
            number = first
            while True:
                print(number, "begun", flush=True)
                try:
                    await me.send("chat", {"text": f"{me.id} {number} x"}, to="m0")
                    outcome = "confirmed"
                except (NotAccepted, NotConfirmed, NotConnected) as error:
                    outcome = outcomes[type(error)]
                print(number, outcome, flush=True)
                number += 1
                await anyio.sleep(pause_seconds)

    run(send)


def run_mew(offset: Path, arguments: list[str]) -> None:
    """The command line with a gateway whose wall clock is off by the seconds in a file."""
    from mew_spaces.gateway import clock

    from mew_agent.__main__ import main

    with offset.open("rb") as file:
        seconds = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)

    class ShiftedClock(datetime):
        @classmethod
        def now(cls, zone: tzinfo) -> datetime:  # type: ignore[override]
            return datetime.now(zone) + timedelta(seconds=struct.unpack("d", seconds[:8])[0])

    setattr(clock, "datetime", ShiftedClock)  # noqa: B010 - to a type checker, this is no assignment
    sys.argv = ["mew", *arguments]
    main()


def run_acp(found: Path) -> None:
    """An ACP agent that writes where the tools of the space are served, and answers nothing else."""
    for line in sys.stdin:
        message = json.loads(line)
        result: dict[str, object] = {"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": {"http": True}}}
        if message.get("method") == "session/new":
            temporary = found.with_suffix(".new")
            temporary.write_text(json.dumps(message["params"]["mcpServers"][0]))
            temporary.rename(found)
            result = {"sessionId": "s-1"}
        if "id" in message and "method" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    match sys.argv[1]:
        case "agent":
            run_agent()
        case "member":
            run_member(int(sys.argv[2]), float(sys.argv[3]))
        case "mew":
            run_mew(Path(sys.argv[2]), sys.argv[3:])
        case "acp":
            run_acp(Path(sys.argv[2]))
        case other:
            sys.exit(f"no program '{other}'")
