"""No request for a compaction stalls an ACP agent: each one is answered, and the agent answers chats after it.

`MEW_COMPACTIONS=1000` makes a thousand of them (`make test-long`); `MEW_SEED` chooses others.
"""

import os
import random
from collections import Counter
from pathlib import Path

import anyio
import pytest

from tests.parts.acp.conftest import Stage, Start
from tests.support.waiting import PATIENCE_SECONDS, until

COMPACTIONS = int(os.environ.get("MEW_COMPACTIONS", "12"))
SEED = int(os.environ.get("MEW_SEED", "1"))
COMPACTIONS_OF_ONE_AGENT = 125
SITUATIONS = ("idle", "busy", "interrupted", "silent", "crashing", "crashed in its turn")


async def compact(s: Stage, situation: str) -> str:
    """Ask for a compaction in this situation. Returns what came of it, and checks that a chat before it is answered."""
    asked, text = None, ""
    s.agent.external_context.handler_timeout_seconds = 0.2 if situation == "silent" else PATIENCE_SECONDS
    match situation:
        case "busy":
            asked, text = await s.ada.chat("slowly, please", to="codex"), "I begin.Done."
        case "interrupted":
            asked, text = await s.ada.chat("wait for me", to="codex"), "I wait."
            await until(lambda: s.agent.engine.answer is not None and s.agent.engine.answer.texts)
        case "silent":
            await s.ask("your next compaction hangs")
        case "crashing":
            await s.ask("your next compaction dies")
        case "crashed in its turn":
            asked, text = await s.ada.chat("crash now", to="codex"), "I cannot answer"
        case _:
            pass
    if situation == "interrupted":
        done = await s.interrupt_and_compact()
    else:
        done = await s.ada.compact("codex", timeout_seconds=PATIENCE_SECONDS)
    if asked is not None:
        reply = await s.recorder.first("codex", "chat", about=asked)
        assert str(reply.body["text"]).startswith(text), reply.body
    if situation == "silent":  # on a busy machine the timeout may pass before the agent has the command
        await s.ask("your next compaction works")
    s.recorder.received.clear()
    return "compacted" if not done.skipped else "timeout" if done.reason == "timeout" else "program ended"


@pytest.mark.parametrize("style", ["codex", "kimi"])
async def test_no_request_for_a_compaction_stalls_an_agent(start: Start, style: str, tmp_path: Path) -> None:
    outcomes: Counter[tuple[str, str]] = Counter()
    stalled: list[str] = []

    async def work(number: int, count: int) -> None:
        chance = random.Random(SEED * 1000 + number)
        store = str(tmp_path / f"{number}.db")
        async with start(style, store=store, cancel_seconds=0.3, max_restarts=1) as s:
            s.agent.engine.restarts.settled_seconds = 0.0  # a crash soon after another is no reason to give up here
            rest = [SITUATIONS[(number + step) % len(SITUATIONS)] for step in range(count)]
            chance.shuffle(rest)
            for step, situation in enumerate(rest):
                try:
                    outcomes[situation, await compact(s, situation)] += 1
                    assert await s.ask(f"chat {step}") == f"You wrote: ada: chat {step}"
                except TimeoutError:
                    stalled.append(f"{situation} (agent {number}, request {step})")

    wanted = COMPACTIONS // 2
    async with anyio.create_task_group() as tasks:
        for number, begin in enumerate(range(0, wanted, COMPACTIONS_OF_ONE_AGENT)):
            tasks.start_soon(work, number, min(COMPACTIONS_OF_ONE_AGENT, wanted - begin))
    print(f"{style}: {dict(sorted(outcomes.items()))}")
    assert not stalled
    assert outcomes.total() == wanted
    expected = {"idle": {"compacted"}, "busy": {"compacted"}, "silent": {"timeout"}}
    assert all(outcome in expected.get(situation, {outcome}) for situation, outcome in outcomes)
