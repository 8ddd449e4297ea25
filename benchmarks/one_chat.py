"""Counts the functions and modules that one chat and its answer enter, in the gateway and in the agent.

    python -m benchmarks.one_chat [--list]

Gateway and agent run in this process, the model's server in another one. The asker is a bare WebSocket, so that no code
of another participant counts; it writes complete envelopes, as clients do. The figure is the functions of this project
that each of five chats enters between the sender's `chat` and the answer's arrival: not joining, and not what follows
the answer. Background tasks of the gateway, such as the search for items that need a person, run by the clock and do
not count. Neither do comprehensions, lambdas and generated functions. What only some of the chats enter depends on
their text or on timers, and is printed apart. Prints the figure beside its bounds, and exits with 1 if it is above.
`--list` names the functions by module.
"""

import argparse
import json
import sys
import threading
from datetime import UTC, datetime
from types import CodeType, FrameType
from typing import Any, Final, Self
from uuid import uuid4

import anyio
from mew_protocol.envelope import Envelope, wire_timestamp
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.server_process import answer_requests, server_process
from mew_agent import Agent
from mew_agent.config.agent_config import AgentConfig
from mew_agent.parts.rehearsal.model_service import serve_rehearsal

MOST_FUNCTIONS: Final = 400
MOST_MODULES: Final = 75
CHATS: Final = 5
QUIET_SECONDS: Final = 0.5
BACKGROUND: Final = "mew_spaces.gateway.gateway", "_must_run"
"""The function that runs each background task of the gateway."""
SPACE: Final = """
space: {id: demo}
participants:
  ada: {role: person, capabilities: [{kind: "*"}]}
  coder: {command: mew, role: agent}
"""


def serve_model(control: Any) -> None:
    """Serve the rehearsal model in this process; sends its URL."""

    async def serve() -> None:
        async with serve_rehearsal() as server:
            control.send(server.base_url)
            answer_requests(control)
            await anyio.sleep_forever()

    anyio.run(serve)


class Entered:
    """The functions of our packages that run while it is active, in all threads."""

    def __init__(self) -> None:
        self.codes: set[tuple[str, CodeType]] = set()

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        function = frame.f_globals.get("__name__", ""), frame.f_code
        # Dataclasses generate functions, in no file.
        is_ours = function[0].startswith("mew_") and not frame.f_code.co_filename.startswith("<")
        if event == "call" and is_ours and function not in self.codes and not is_in_background(frame):
            self.codes.add(function)

    def names(self) -> set[tuple[str, str]]:
        """Return the modules and qualified names of the functions. Comprehensions and lambdas are none."""
        return {(module, code.co_qualname) for module, code in self.codes if not code.co_name.startswith("<")}


def is_in_background(frame: FrameType | None) -> bool:
    """Return whether a function is called by a background task."""
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == BACKGROUND:
            return True
        frame = frame.f_back
    return False


async def chats(base_url: str) -> list[set[tuple[str, str]]]:
    """Return the functions that each of some chats to an agent enters, from the chat to the answer's arrival."""
    found = []
    async with serve_gateway(parse_space(SPACE)) as gateway:
        config = AgentConfig(
            gateway=gateway.ws_url,
            space="demo",
            id="coder",
            token=gateway.token_of("coder"),
            model="rehearsal",
            base_url=base_url,
        )
        bearer = {"Authorization": f"Bearer {gateway.token_of('ada')}"}
        async with (
            Agent.from_config(config),
            connect(f"{gateway.ws_url}/ws?space=demo", additional_headers=bearer) as ada,
        ):
            await ask(ada, "What is in your context?")
            for _ in range(CHATS):
                await until_quiet(ada)
                with Entered() as entered:
                    await ask(ada, "How full is it?")
                found.append(entered.names())
    return found


async def until_quiet(ada: ClientConnection) -> None:
    """Return when no envelope has come for a while: what follows the last answer is done."""
    with anyio.move_on_after(QUIET_SECONDS) as quiet:
        async for _ in ada:
            quiet.deadline = anyio.current_time() + QUIET_SECONDS


async def ask(ada: ClientConnection, text: str) -> None:
    """Send a chat and wait for the answer."""
    name = str(uuid4())
    at = wire_timestamp(datetime.now(UTC))
    chat = Envelope.write("chat", id=name, ts=at, sender="ada", to=("coder",), payload={"text": text})
    await ada.send(chat.encode().decode())
    with anyio.fail_after(60):
        async for raw in ada:
            envelope = json.loads(raw) if isinstance(raw, str) and raw.startswith("{") else {}
            if envelope.get("kind") == "chat" and name in (envelope.get("correlation_id") or ()):
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    with server_process(serve_model) as (base_url, _):
        found = anyio.run(chats, base_url)
    each = set.intersection(*found)
    some = set.union(*found) - each
    if options.list:
        for title, functions in (("each chat:", each), ("some chats:", some)):
            print(title)
            for module in sorted({module for module, _ in functions}):
                names = sorted(name for of, name in functions if of == module)
                print(f"{len(names):4} {module}: {', '.join(names)}")
    modules = len({module for module, _ in each})
    bounds = f"at most {MOST_FUNCTIONS} in {MOST_MODULES}"
    print(f"one chat and its answer: {len(each)} functions in {modules} modules ({bounds})")
    print(f"in some of {CHATS} chats, by timers or by their text: {len(some)} more")
    return int(len(each) > MOST_FUNCTIONS or modules > MOST_MODULES)


if __name__ == "__main__":
    sys.exit(main())
