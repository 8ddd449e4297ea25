"""Measures how soon a space shows that an ACP agent is blocked, and by what.

    python -m benchmarks.blocked_agents [--rounds 200]

A program asks for a permission, with the time at which it wrote the request. Measured is the time until another member
has the status with that request, and until the board over HTTP shows it, asked every 5 ms on one connection. The
floor is a status that a member sends without such a program. The exit code is 1 if 1 % of the requests took longer than
200 ms.
"""

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.participant.event_handlers import ProposalMade
from mew_agent.participant.participant import Participant
from mew_agent.parts.acp.acp_agent import AcpAgent
from mew_agent.parts.acp.settings import AcpConfig

LIMIT_SECONDS: Final = 0.2
POLL_SECONDS: Final = 0.005
ROUND_SECONDS: Final = 30.0
SPACE: Final = """
space: {id: blocked}
limits: {reads_per_second: 100000}
participants:
  ada: {capabilities: [{kind: "*"}]}
  eve: {capabilities: [{kind: "*"}]}
  helper: {role: agent, acp: {command: helper}}
"""
AGENT: Final = """
import json, sys, time

def write(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

prompt = None
for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message.get("method")
    if method == "initialize":
        write(id=number, result={"protocolVersion": 1, "agentInfo": {"name": "blocked"}})
    elif method == "session/new":
        write(id=number, result={"sessionId": "s"})
    elif method == "session/prompt":
        prompt = number
        call = {"toolCallId": "c", "title": "look", "rawInput": {"at": time.time()}}
        options = [{"optionId": "no", "name": "no", "kind": "reject_once"}]
        params = {"sessionId": "s", "toolCall": call, "options": options}
        write(id=1, method="session/request_permission", params=params)
    elif method is None:
        write(id=prompt, result={"stopReason": "end_turn"})
"""


class Board:
    """Asks for the board on one connection."""

    def __init__(self, gateway: RunningGateway) -> None:
        place = urlsplit(gateway.ws_url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port)
        self._headers = {"Authorization": f"Bearer {gateway.token_of('ada')}"}

    def until_shown(self, participant: str, after: float) -> tuple[float, float]:
        """When the status of a participant first showed a time not before `after`, and that time."""
        while True:
            self._connection.request("GET", "/spaces/blocked/context", headers=self._headers)
            board = json.loads(self._connection.getresponse().read())
            status = next(one["status"] for one in board["participants"] if one["id"] == participant)
            if status is not None and (asked_at := time_in(status)) is not None and asked_at >= after:
                return time.time(), asked_at
            time.sleep(POLL_SECONDS)


def time_in(status: Mapping[str, Any]) -> float | None:
    """The time that the blocked program wrote into its request, or the floor into its status."""
    for wait in status.get("context", {}).get("waiting") or ():
        return float(wait["arguments"]["input"]["at"])
    word, _, at = str(status["status"]).partition(":")
    return float(at) if word == "floor" else None


async def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of each round: of the program's requests, and of the floor."""
    seconds: dict[str, list[float]] = {
        name: [] for name in ("member", "HTTP board", "floor: member", "floor: HTTP board")
    }
    seen, proposals, answers = dict[float, float](), list[ProposalMade](), list[Envelope]()
    changed = anyio.Event()

    async def note(envelope: Envelope) -> None:
        nonlocal changed
        if not envelope.to and (at := time_in(envelope.body)) is not None:
            seen.setdefault(at, time.time())
            changed.set()
            changed = anyio.Event()

    with tempfile.TemporaryDirectory() as folder:
        async with serve_gateway(parse_space(SPACE)) as gateway:

            def credentials(name: str) -> Any:
                return {"space": "blocked", "id": name, "token": gateway.token_of(name)}

            settings = AcpConfig(command=sys.executable, args=("-c", AGENT), cwd=folder, space_tools=False)
            ada, eve = (Participant(gateway.ws_url, **credentials(name)) for name in ("ada", "eve"))
            ada.on(kinds.PARTICIPANT_STATUS)(note)
            ada.on_proposal(proposals.append)
            ada.on(kinds.CHAT)(answers.append)
            async with ada, eve, AcpAgent(settings, gateway.ws_url, **credentials("helper")):
                board = Board(gateway)
                while "helper" not in ada.peers:
                    await anyio.sleep(0.01)

                async def until_seen(names: tuple[str, str], participant: str, since: float) -> None:
                    with anyio.fail_after(ROUND_SECONDS):
                        shown, at = await anyio.to_thread.run_sync(
                            board.until_shown, participant, since, abandon_on_cancel=True
                        )
                        while at not in seen:
                            await changed.wait()
                    for name, when in zip(names, (seen[at], shown), strict=True):
                        seconds[name].append(when - at)

                for number in range(1, rounds + 1):
                    since = time.time()
                    await ada.chat("look", to="helper")
                    await until_seen(("member", "HTTP board"), "helper", since)
                    with anyio.fail_after(ROUND_SECONDS):
                        # The status may arrive before the proposal.
                        while len(proposals) < number:
                            await anyio.sleep(0.005)
                        await proposals[-1].reject("measured")
                        while sum(one.sender == "helper" for one in answers) < number:
                            await anyio.sleep(0.005)
                    since = time.time()
                    status = {"status": f"floor:{time.time()!r}", "messages_in_context": 0}
                    await eve.send(kinds.PARTICIPANT_STATUS, status)
                    await until_seen(("floor: member", "floor: HTTP board"), "eve", since)
    return seconds


def main() -> int:
    """Print the table. Returns the exit code."""
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=200)
    seconds = anyio.run(measure, options.parse_args().rounds)
    print(f"{'shown by':<20} {'median':>9} {'p99':>9} {'longest':>9}   (ms)")
    for name, found in seconds.items():
        ordered = sorted(found)
        p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        print(f"{name:<20} {statistics.median(ordered) * 1e3:9.1f} {p99 * 1e3:9.1f} {ordered[-1] * 1e3:9.1f}")
    late = max(
        sum(one > LIMIT_SECONDS for one in seconds[name]) / len(seconds[name]) for name in ("member", "HTTP board")
    )
    return 1 if late > 0.01 else 0


if __name__ == "__main__":
    sys.exit(main())
