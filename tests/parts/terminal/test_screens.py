"""Whole screens of the terminal application, compared with stored ones; `make screens` writes them again."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.context_history import ParticipantFigures
from mew_protocol.payloads.participant import Board, PrefixPart

from mew_agent.cli.remote.identity import Identity
from mew_agent.participant.peers import NO_CHANGES
from mew_agent.parts.terminal.app import SpaceApp
from mew_agent.parts.terminal.joined_space import JoinedSpace
from mew_agent.parts.terminal.widgets import BoardList
from tests.support.terminal_app import Screen
from tests.support.waiting import until

SCREENS = Path(__file__).with_name("screens")
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def entry(
    name: str, tokens: int | None, *, word: str = "active", connected: bool = True, **report: Any
) -> dict[str, Any]:
    about = {"basis": "reported", "max_tokens_basis": "configured", "level": "healthy", "severity": 0, **report}
    status = {"messages_in_context": 12, "max_tokens": 128_000, "status": word, "context": about}
    known = status if tokens is None else {**status, "tokens": tokens}
    return {"id": name, "connected": connected, "received_at": ago(5), "status": known}


PARTS = [("prefix", 4_100), ("summary", 1_204), ("pins", 80), ("messages", 61_000), ("tool_results", 30_000)]
FULL: dict[str, Any] = {
    "compact_at_tokens": 115_200,
    "next_prompt_tokens": 99_107,
    "next_prompt_basis": "projected",
    "turns_to_compaction": 5,
    "measured_at": ago(3),
    "policy": "mew",
    "model": "rehearsal",
    "compactions": 1,
    "last_compaction": {
        "at": ago(1_260),
        "trigger": "threshold",
        "tokens_before": 115_940,
        "tokens_after": 52_310,
        "freed_tokens": 63_630,
        "basis": "server_counted",
    },
    "breakdown": [
        *({"part": part, "tokens": tokens, "basis": "projected"} for part, tokens in PARTS),
        {"part": "reply", "tokens": 2_028, "basis": "reported"},
    ],
}
PIECES = {"kind": "compaction", "done": 1, "total": 5, "unit": "pieces", "since": ago(40)}
APPROVAL = {
    "kind": "approval",
    "what": "approval of write_file on files",
    "since": ago(12),
    "peer": "files",
    "tool": "write_file",
    "arguments": {"path": "x.txt"},
    "proposal": "p1",
    "who_may_answer": ["ada"],
}
THREE = (
    entry("coder", 98_412, word="waiting_for_approval", waiting=[APPROVAL], **FULL),
    entry("writer", 120_000, word="compacting", basis="projected", severity=2, level="near_limit", progress=PIECES),
    entry("local-llm", None, word="model_unreachable", basis="unknown", reason="usage_unavailable", severity="unknown"),
    entry("gone", 6_731, connected=False),
    {"id": "ada", "connected": True},
    {"id": "files", "connected": True},
)
SIXTY = tuple(
    entry(f"agent-{number}", 2_000 * number, word="model_unreachable" if number == 7 else "active")
    for number in range(60)
)
PREFIX = (
    PrefixPart(part="system_prompt", tokens=2_000, basis="tokenizer"),
    PrefixPart(part="tool", name="write_file", tokens=1_200, basis="projected"),
    PrefixPart(part="tool", name="read_file", tokens=900, basis="projected"),
)
READ = {"action": "tool", "actionInput": {"tool": "read_file", "arguments": {"path": "x.txt"}}}
WRITE = {"method": "tools/call", "params": {"name": "write_file", "arguments": {"path": "x.txt"}}}
CHATS: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("chat", "ada", {"text": "Write **x.txt**, please:\n\n```py\nx = 1\n```"}, {"to": ["coder"], "id": "q1"}),
    ("reasoning/start", "coder", {"input": "Write"}, {"id": "r1", "correlation_id": ["q1"]}),
    ("reasoning/thought", "coder", READ, {"context": "r1"}),
    ("mcp/proposal", "coder", WRITE, {"to": ["files"], "id": "p1"}),
    ("system/presence", "system:gateway", {"event": "join", "participant": {"id": "gone"}}, {}),
    ("system/presence", "system:gateway", {"event": "leave", "participant": {"id": "gone"}}, {}),
    ("system/presence", "system:gateway", {"event": "join", "participant": {"id": "writer"}}, {}),
    ("system/presence", "system:gateway", {"event": "join", "participant": {"id": "files"}}, {}),
    ("chat", "writer", {"text": "I read <b>all</b> of it: 你好."}, {"id": "c2"}),
)  # fmt: skip


def envelopes() -> Iterator[Envelope]:
    for at, (kind, sender, payload, headers) in enumerate(CHATS):
        about: dict[str, Any] = {"id": f"e{at}", "ts": ago(60 - 10 * at), "protocol": "mew/v0.4", **headers}
        yield Envelope.model_validate({**about, "from": sender, "kind": kind, "payload": payload})


class StoredSpace(JoinedSpace):
    """A space that stands still."""

    entries: tuple[dict[str, Any], ...] = THREE
    is_joined, catching_up = True, None

    async def run(self) -> None:
        samples = [
            {"at": ago(3_500 - 300 * at), "tokens": 30_000 + 6_000 * at, "max_tokens": 128_000, "basis": "reported"}
            for at in range(12)
        ]
        figures = {"id": "coder", "samples": samples, "compactions": [FULL["last_compaction"]]}
        self.figures = {"coder": ParticipantFigures.model_validate(figures)}
        self.prefixes = {"coder": PREFIX}
        self.board = Board.model_validate({"space": "review", "at": ago(0), "participants": self.entries})
        self._early = None
        for one in envelopes() if self.entries is THREE else ():
            tuple(self.me.events.events_in(one, NO_CHANGES))
            self.receive(one)
        self.on_change(())
        await anyio.sleep_forever()


class CrowdedSpace(StoredSpace):
    """A space with sixty agents."""

    entries = SIXTY


Step = tuple[str, tuple[int, int], tuple[str, ...]]
"""The name of a stored screen, the size of the terminal, and the keys that lead there from the step before."""

STEPS: tuple[Step, ...] = (
    ("conversation", (80, 24), ()),
    ("wide", (140, 50), ("f2",)),
    ("narrow", (46, 20), ()),
    ("keys", (80, 24), ("escape", "f1")),
)


@pytest.mark.parametrize(
    ("space", "steps"),
    [(StoredSpace, STEPS), (CrowdedSpace, (("sixty", (80, 24), ("f2", "down", "down")),))],
    ids=["three", "sixty"],
)
@pytest.mark.skipif(int(version("textual").split(".")[0]) < 8, reason="older versions draw some widgets differently")
async def test_screens_are_as_stored(
    space: type[StoredSpace], steps: tuple[Step, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    app = SpaceApp(Identity("ws://localhost:1", "review", "ada", "t"), now=lambda: NOW, joined=space)
    async with app.run_test(size=steps[0][1]) as pilot:
        screen = Screen(pilot)
        await screen.shows("you are ada")
        for name, size, keys in steps:
            await pilot.resize_terminal(*size)
            await pilot.press(*keys)
            stored = SCREENS / f"{name}.txt"
            if os.environ.get("RENEW_SCREENS"):
                stored.write_text(await screen.rests(), encoding="utf-8")
            await screen.becomes(stored.read_text(encoding="utf-8"))


class TeamSpace(StoredSpace):
    """A space with agents of two models."""

    entries = (
        *(entry(f"agent-{at}", 12_800 * at, model=f"model-{at % 2}") for at in range(6)),
        {"id": "ada", "connected": True},
        {"id": "files", "connected": True},
    )


async def test_g_groups_the_participants() -> None:
    app = SpaceApp(Identity("ws://localhost:1", "review", "ada", "t"), now=lambda: NOW, joined=TeamSpace)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = Screen(pilot)
        await screen.shows("6 agents · 192,000 of 768,000 tokens in use")
        await pilot.press("f2", "g")
        await screen.shows("agents (6, 25% full)")
        await screen.shows("people (1)")
        await screen.shows("tools (1)")
        await pilot.press("g")
        await screen.shows("model-1 (3, 30% full)")
        assert app.query_one(BoardList).chosen == "agent-5"
        await pilot.press("down", "down", "down")  # over the heading
        assert app.query_one(BoardList).chosen == "agent-4"
        await pilot.press("g", "g")
        await until(lambda: "full)" not in str([one.prompt for one in app.query_one(BoardList).options]))
