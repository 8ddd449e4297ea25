"""For every message and every moment, the receipt equals the truth in the prompts that the model got."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from mew_protocol.json_values import objects_at
from mew_protocol.payloads.participant import Forget
from mew_protocol.payloads.read_receipts import ReadReceipt

from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RecordedRequest
from tests.support.agents import AgentDriver
from tests.support.waiting import PATIENCE_SECONDS

StartAgent = Callable[..., Any]
Joined = Callable[..., Participant]

STEPS = 45
FACTS = ("Decision: the port of {mark} is 8080.", "Station {mark} measured seven units of water today, as usual.")


@dataclass
class Sent:
    """A message, and what the model's prompts showed of it so far."""

    id: str
    sender: str
    text: str
    first_call: int | None = None


@dataclass
class Truth:
    """Follows every message through the prompts of one agent."""

    random: Random
    sent: list[Sent] = field(default_factory=list)
    calls: int = 0
    """The main calls of earlier processes."""
    seen: int = 0
    """The main calls whose prompts were looked at. A message that is sent later is in none of them."""

    def look(self, requests: list[RecordedRequest]) -> None:
        """Note the first prompt that holds each message word for word."""
        for request in requests[self.seen - self.calls :]:
            self.seen += 1
            said = [str(one["content"]) for one in objects_at(request.body, "messages") if one["role"] == "user"]
            for one in self.sent:
                if one.first_call is None and any(one.text in text for text in said if "[Summary" not in text[:30]):
                    one.first_call = self.seen

    def check(self, one: Sent, receipt: ReadReceipt, s: AgentDriver) -> None:
        """Compare a receipt with the prompts so far, and with the next one."""
        history = s.agent.conversation.history
        assert (None if receipt.call is None else receipt.call.number) == one.first_call
        is_present = any(item.role == "user" and one.text in item.content for item in history.items)
        assert (receipt.in_context == "whole") == (is_present and one.first_call is not None)
        if receipt.in_context == "summary":
            assert history.summary is not None
            summary = history.summary
            is_quoted = any(sentence in summary.text for sentence in one.text.rstrip(".").split(". "))
            sources = {*summary.cited_ids, *(fact.source for fact in summary.facts)}
            assert is_quoted if receipt.summary == "quoted" else one.id in sources, (one, receipt, summary)
        assert receipt.in_context != "unknown"
        assert receipt.state in ("answered", "in_prompt")


@pytest.mark.parametrize("seed", [6, 7, 8])
async def test_receipts_equal_the_prompts_through_cuts_undos_and_restarts(
    start_agent: StartAgent, joined: Joined, tmp_path: Path, seed: int
) -> None:
    truth = Truth(Random(seed))
    choose, path = truth.random, tmp_path / "coder.db"
    steps = 0
    while steps < STEPS:
        async with AsyncExitStack() as stack:
            s: AgentDriver = await stack.enter_async_context(
                start_agent(store=SqliteStore(path), window_tokens=choose.choice((2_048, 4_096)))
            )
            bob = await stack.enter_async_context(joined("bob"))
            while steps < STEPS:
                steps += 1
                match choose.choice(("chat",) * 6 + ("compact", "forget", "clear", "undo", "restart")):
                    case "chat":
                        sender = choose.choice((s.ada, bob))
                        mark = f"M{len(truth.sent):04}"
                        text = choose.choice(FACTS).format(mark=mark) + " And so on." * choose.choice((0, 20))
                        with anyio.fail_after(PATIENCE_SECONDS):
                            sent = await sender.chat(text, to="coder")
                            truth.sent.append(Sent(sent.id, sender.id, text))
                            await sent.read()
                            await s.recorder.first("coder", "chat", about=sent)
                    case "compact":
                        target = choose.choice((None, 300))
                        await s.ada.compact("coder", reason="test", target_tokens=target)
                    case "forget":
                        await s.agent.conversation.forget(Forget(direction="oldest", entries=2), "ada")
                    case "clear":
                        if choose.random() < 0.3:
                            await s.agent.conversation.clear("ada", "test")
                    case "undo":
                        await s.ada.undo("coder")
                    case _:
                        break
                truth.look(s.main_requests)
                await check_all(truth, s)
            truth.look(s.main_requests)
            truth.calls += len(s.main_requests)
    assert sum(one.first_call is not None for one in truth.sent) == len(truth.sent) > 20


async def check_all(truth: Truth, s: AgentDriver) -> None:
    for sender in ("ada", "bob"):
        own = [one for one in truth.sent if one.sender == sender]
        for first in range(0, len(own), 100):
            part = own[first : first + 100]
            receipts = await receipts_of_one_moment(s, [one.id for one in part], sender)
            for one, receipt in zip(part, receipts, strict=True):
                truth.check(one, receipt, s)


async def receipts_of_one_moment(s: AgentDriver, ids: list[str], sender: str) -> tuple[ReadReceipt, ...]:
    """Return receipts of the history as it is now. The agent's own policy may cut it while they are on their way."""
    history = s.agent.conversation.history
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            revision = history.revision
            receipts = await s.ada.receipts("coder", *ids, sender=sender)
            if history.revision == revision:
                return tuple(receipts)
