"""Counts the functions and modules that one chat and its answer enter, in the gateway and in the agent.

    python -m benchmarks.one_chat [--list]

Gateway, agent and rehearsal model run in this process; the asker is a bare WebSocket, so that no code of another
participant counts. The rehearsal model stands for a provider, so its server is counted apart. Prints the figures beside
their bounds, and exits with 1 if one is above. `--list` names the functions by module.
"""

import argparse
import json
import sys
import threading
from collections import defaultdict
from types import CodeType, FrameType
from typing import Any, Final, Self
from uuid import uuid4

import anyio
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway
from websockets.asyncio.client import ClientConnection, connect

from mew_agent import Agent
from mew_agent.config.agent_config import AgentConfig

MOST_FUNCTIONS: Final = 400
MOST_MODULES: Final = 75
MODEL_SERVER: Final = (
    "mew_agent.parts.rehearsal",
    "mew_agent.serving.responses_format",
    *(f"mew_listener.{name}" for name in ("accepting", "descriptors", "http", "proxies", "request_guard", "server")),
    "mew_listener.unjoined",
)
"""The modules of the model's server; the gateway's connections use only the WebSocket of the listener here."""

SPACE: Final = """
space: {id: demo}
participants:
  ada: {role: person, capabilities: [{kind: "*"}]}
  coder: {command: mew, role: agent}
"""


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
        module = frame.f_globals.get("__name__", "")
        # Dataclasses generate functions, in no file.
        if event == "call" and module.startswith("mew_") and not frame.f_code.co_filename.startswith("<"):
            self.codes.add((module, frame.f_code))

    def by_module(self) -> dict[str, list[str]]:
        """Return the qualified names of the functions, by module. Comprehensions and lambdas are none."""
        found: dict[str, set[str]] = defaultdict(set)
        for module, code in self.codes:
            if not code.co_name.startswith("<"):
                found[module].add(code.co_qualname)
        return {module: sorted(names) for module, names in sorted(found.items())}


async def one_chat() -> dict[str, list[str]]:
    """Return what the second chat to an agent enters, from the chat to the answer, by module."""
    async with serve_gateway(parse_space(SPACE)) as gateway:
        config = AgentConfig(
            gateway=gateway.ws_url,
            space="demo",
            id="coder",
            token=gateway.token_of("coder"),
            model="rehearsal",
            base_url="rehearsal",
        )
        bearer = {"Authorization": f"Bearer {gateway.token_of('ada')}"}
        async with (
            Agent.from_config(config),
            connect(f"{gateway.ws_url}/ws?space=demo", additional_headers=bearer) as ada,
        ):
            await ask(ada, "What is in your context?")
            with Entered() as entered:
                await ask(ada, "How full is it?")
    return entered.by_module()


async def ask(ada: ClientConnection, text: str) -> None:
    """Send a chat and wait for the answer."""
    name = str(uuid4())
    await ada.send(json.dumps({"id": name, "kind": "chat", "to": ["coder"], "payload": {"text": text}}))
    with anyio.fail_after(60):
        async for raw in ada:
            envelope = json.loads(raw) if isinstance(raw, str) and raw.startswith("{") else {}
            if envelope.get("kind") == "chat" and name in (envelope.get("correlation_id") or ()):
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    found = anyio.run(one_chat)
    if options.list:
        for module, names in found.items():
            print(f"{len(names):4} {module}: {', '.join(names)}")
    model = {module: names for module, names in found.items() if module.startswith(MODEL_SERVER)}
    ours = {module: names for module, names in found.items() if module not in model}
    functions, modules = sum(map(len, ours.values())), len(ours)
    bounds = f"at most {MOST_FUNCTIONS} in {MOST_MODULES}"
    print(f"one chat and its answer: {functions} functions in {modules} modules ({bounds})")
    print(f"and in the rehearsal model: {sum(map(len, model.values()))} functions in {len(model)} modules")
    return int(functions > MOST_FUNCTIONS or modules > MOST_MODULES)


if __name__ == "__main__":
    sys.exit(main())
