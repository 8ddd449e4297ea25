"""What sends besides the members in this process: agents and members in processes of their own, and senders by HTTP.

Owns how each is started and what it reports. Knows no faults.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx2

from tests.faults.processes import PROGRAMS, ProgramProcess
from tests.faults.witness import ChatKey, SendOutcome
from tests.support.faulty_link import FaultyLink
from tests.support.warm_start import PYTHON

HTTP_TIMEOUT_SECONDS = 5.0
PROCESS_PAUSE_SECONDS = 0.15
MAX_TURN_SECONDS = 20.0


class JoinedProcess(ProgramProcess):
    """An agent or a member in a process of its own, over a link that can be broken."""

    def __init__(self, name: str, folder: Path, program: str, url: str, space: str, **more: str) -> None:
        """`url` is the address of the gateway, or those of several with commas."""
        environment = {"MEW_GATEWAY": url, "MEW_SPACE": space, "MEW_PARTICIPANT_ID": name, "MEW_TOKEN": name}
        super().__init__(name, folder, [PYTHON, str(PROGRAMS), program], {**environment, **more})

    def start(self) -> None:
        """Start the process, or start it again."""
        self.launch()


class AgentProcess(JoinedProcess):
    """An agent with a stored session."""

    def __init__(self, name: str, folder: Path, url: str, space: str, model_url: str, **settings: Any) -> None:
        config = {
            "store": str(folder / f"{name}.db"),
            "answer_broadcasts": "never",
            "max_turn_seconds": MAX_TURN_SECONDS,
            **settings,
        }
        model = {"OPENAI_BASE_URL": model_url, "OPENAI_API_KEY": "key", "OPENAI_MODEL": "rehearsal"}
        super().__init__(name, folder, "agent", url, space, MEW_AGENT_CONFIG=json.dumps(config), **model)


class MemberProcess(JoinedProcess):
    """A member that sends numbered chats and logs the outcome of each."""

    def __init__(self, name: str, folder: Path, url: str, space: str) -> None:
        super().__init__(name, folder, "member", url, space)

    def start(self) -> None:
        """Start the process with the number after the last one that an earlier run began."""
        first = max((key.number for key, _ in self.outcomes()), default=0) + 1
        self.launch(str(first), str(PROCESS_PAUSE_SECONDS))

    def outcomes(self) -> Iterator[tuple[ChatKey, SendOutcome]]:
        """The outcome of each chat; unknown for one that a killed run had begun."""
        found = {"begun": SendOutcome.UNKNOWN, "unknown": SendOutcome.UNKNOWN, "confirmed": SendOutcome.CONFIRMED}
        found |= {"refused": SendOutcome.REFUSED, "never sent": SendOutcome.NEVER_SENT}
        for line in self.output.splitlines():
            number, _, word = line.partition(" ")
            if number.isdigit() and word in found:
                yield ChatKey(self.name, int(number)), found[word]


class HttpSender:
    """Sends numbered chats by HTTP, each again under its id until the gateway has accepted it."""

    def __init__(self, name: str, link: FaultyLink, outcomes: dict[ChatKey, SendOutcome]) -> None:
        self.name = name
        self.link = link
        self._outcomes = outcomes

    async def run(self, is_stopping: Callable[[], bool], pause_seconds: float) -> None:
        """Send until the run stops."""
        number = 0
        async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=HTTP_TIMEOUT_SECONDS) as http:
            while not is_stopping():
                number += 1
                text = f"{self.name} {number} x"
                body = {"id": f"{self.name}-{number}", "kind": "chat", "to": ["m0"], "payload": {"text": text}}
                self._outcomes[ChatKey(self.name, number)] = SendOutcome.UNKNOWN
                while not await self._is_accepted(http, body):
                    await anyio.sleep(pause_seconds)
                self._outcomes[ChatKey(self.name, number)] = SendOutcome.CONFIRMED
                await anyio.sleep(pause_seconds)

    async def _is_accepted(self, http: httpx2.AsyncClient, body: Mapping[str, object]) -> bool:
        url = f"http://127.0.0.1:{self.link.port}/participants/{self.name}/messages"
        try:
            answer = await http.post(url, json=body, headers={"authorization": f"Bearer {self.name}"})
            return answer.status_code == 200 and answer.json()["status"] in ("accepted", "duplicate")
        except (httpx2.HTTPError, ValueError):
            return False
