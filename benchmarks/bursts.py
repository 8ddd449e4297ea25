"""Bursts of messages to one agent, with and without the check whether they fit.

    python -m benchmarks.bursts --bursts 1000

Real gateway, agent and HTTP; the rehearsal model has a small window and refuses what does not fit. In each burst a
participant sends seven messages at once, of 40 tokens to twice the window. With `hold` it chooses at random between a
reference, a digest and a cancellation for each message that is held for its decision. The same bursts run in each mode.
"""

import argparse
import logging
import math
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.chat import chat_refusal_in
from mew_protocol.payloads.text_fit import WOULD_OVERFLOW, Delivery, WouldFit
from mew_spaces.config.loading import load_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.agent.agent import Agent
from mew_agent.config.agent_config import AgentConfig
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal

WINDOW_TOKENS: Final = 4_000
BURST: Final = 7
CHOICES: Final[tuple[Delivery, ...]] = ("reference", "digest", "cancel")
MODES: Final[tuple[WouldFit, ...]] = ("off", "warn", "hold")
BURST_SECONDS: Final = 120.0

SPACE: Final = """
space: {{id: bursts, would_fit: "{mode}"}}
participants:
  ada: {{capabilities: [{{kind: "*"}}]}}
  coder: {{capabilities: [{{kind: "*"}}]}}
"""


@dataclass
class BurstOutcome:
    """What happened in one mode. `overflows` counts requests that the model refused because they were too large."""

    messages: int = 0
    overflows: int = 0
    unread: int = 0  # messages that the agent answered by saying that they do not fit
    warned: int = 0
    held: int = 0
    chosen: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def row(self, mode: str) -> str:
        """A row of the table."""
        figures = (self.messages, self.overflows, self.unread, self.warned, self.held, sum(self.chosen.values()))
        return f"| `{mode}` | {' | '.join(f'{figure:,}' for figure in figures)} | {self.seconds:,.0f} s |"


async def run_bursts(mode: WouldFit, bursts: int, seed: int) -> BurstOutcome:
    """Send the bursts of this seed, one after another, and count."""
    outcome, chance = BurstOutcome(), random.Random(seed)
    texts = random.Random(seed + 1)
    open_chats: set[str] = set()
    changed = anyio.Event()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "space.yaml"
        path.write_text(SPACE.format(mode=mode))
        async with (
            serve_gateway(load_space(path)) as gateway,
            serve_rehearsal(
                RehearsalOptions(window_tokens=WINDOW_TOKENS, reply_tokens=40, tokens_per_chunk=40)
            ) as server,
        ):
            ids = {"space": "bursts", "gateway": gateway.ws_url}
            config = AgentConfig(
                **ids,
                id="coder",
                token=gateway.token_of("coder"),
                context_token_limit=WINDOW_TOKENS,
                reasoning_enabled=False,
            )
            model = OpenAIModel("rehearsal", server.base_url, "key", max_retries=0)
            ada = Participant(gateway.ws_url, space="bursts", id="ada", token=gateway.token_of("ada"))

            def close(*names: str) -> None:
                nonlocal changed
                open_chats.difference_update(names)
                was, changed = changed, anyio.Event()
                was.set()

            @ada.on(kinds.CHAT_ACKNOWLEDGE)
            def count(acknowledgement: Envelope) -> None:
                if acknowledgement.body.get("status") == WOULD_OVERFLOW:
                    outcome.warned += 1
                    outcome.held += bool(acknowledgement.body.get("held"))
                elif chat_refusal_in(acknowledgement) is not None:
                    outcome.unread += 1
                    close(*acknowledgement.correlation_ids)

            @ada.on(kinds.CHAT)
            async def read(chat: Envelope) -> None:
                if "would_overflow" not in chat.body:
                    outcome.unread += "does not fit" in str(chat.body["text"])
                    close(*chat.correlation_ids)
                    return
                how = chance.choice(CHOICES)
                outcome.chosen[how] += 1
                await ada.deliver("coder", chat.correlation_ids[0], how)
                if how == "cancel":
                    close(*chat.correlation_ids)

            async with Agent(config, model), ada:
                began, seen = time.perf_counter(), 0
                for number in range(bursts):
                    for place in range(BURST):
                        text = _text(texts, f"{number}-{place}")
                        chat = ada.messenger.draft(kinds.CHAT, {"text": text}, to=("coder",))
                        open_chats.add(chat.id)
                        outcome.messages += 1
                        await ada.messenger.send_envelope(chat)
                    with anyio.fail_after(BURST_SECONDS):
                        while open_chats:
                            await changed.wait()
                    outcome.seconds = time.perf_counter() - began
                    # The server keeps only its newest requests.
                    new = [request for request in server.requests if request.number > seen]
                    outcome.overflows += sum(request.prompt_tokens >= WINDOW_TOKENS for request in new)
                    seen = server.requests[-1].number if server.requests else seen
                    if (number + 1) % 100 == 0:
                        print(f"after {number + 1:,} bursts: {outcome.row(mode)}", file=sys.stderr, flush=True)
            await model.aclose()
    return outcome


def _text(chance: random.Random, name: str) -> str:
    """A text that is like no other; its size is log-uniform."""
    tokens = math.exp(chance.uniform(math.log(40), math.log(2 * WINDOW_TOKENS)))
    lines = max(1, round(tokens / 18))
    return "\n".join(
        f"Gauge {name} in hall {line} shows {chance.randrange(10**6)} litres at noon." for line in range(lines)
    )


def main() -> None:
    """Print a table of all modes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bursts", type=int, default=1_000, help="number of bursts in each mode (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the texts (default: 1)")
    parser.add_argument("--mode", choices=MODES, action="append", help="mode to run (default: all)")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print("| Mode | Messages | Refused requests | Not read | Warnings | Held | Sender chose | Time |")
    print("|---|---|---|---|---|---|---|---|")
    for mode in given.mode or MODES:
        outcome = anyio.run(run_bursts, mode, given.bursts, given.seed)
        print(outcome.row(mode), flush=True)


if __name__ == "__main__":
    main()
