"""A space at a low rate for a long time: do the processes of gateway, agent and model stay as large as they are?

Owns the load and the measurements; `python -m tests.faults --soak --seconds 900` prints them.
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from mew_agent.participant.participant import Participant
from tests.faults.processes import PROGRAMS, GatewayProcess, ProgramProcess
from tests.support.ports import unused_ports
from tests.support.warm_start import PYTHON

WARM_UP = 0.4
"""The part of the run after which memory is compared: by then caches and the history have their size."""

GROWTH_BYTES = 8 * 1024 * 1024
"""How much a process may grow after that."""

SAMPLES = 15

FIRST_CHATS = 51_000
"""Chats sent before the run: a little more than the envelope ids that a gateway remembers, so that it has its size."""

SENDERS = 20
"""How many of them are sent at the same time."""

_SPACE = {
    "space": {"id": "soak"},
    "participants": {
        "ada": {"tokens": ["a"], "capabilities": [{"kind": "*"}]},
        "bob": {"tokens": ["b"], "command": "true", "capabilities": [{"kind": "*"}]},
        "coder": {"tokens": ["c"], "command": "true", "capabilities": [{"kind": "*"}]},
    },
    "limits": {
        "history_envelopes": 2_000,
        "history_bytes": 8 * 1024 * 1024,
        "envelopes_per_second": 1e6,
        "envelope_burst": 1_000_000,
    },
}

_FILLER = "The tide comes in twice a day, and every ship in the harbour knows when. "


@dataclass
class SoakReport:
    """Questions answered, chats sent, and the memory of each process in MiB at equal intervals."""

    seconds: float
    questions: int = 0
    chats: int = 0
    rss: dict[str, list[float]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.seconds:.0f} s: {self.questions} questions answered, {self.chats} chats"]
        return "\n".join(
            lines + [f"{name:>8} {' '.join(f'{one:.1f}' for one in seen)}" for name, seen in self.rss.items()]
        )

    def growth_bytes(self) -> Mapping[str, float]:
        """How much each process grew after the warm-up."""
        first = int(len(next(iter(self.rss.values()))) * WARM_UP)
        return {name: (max(seen[-2:]) - max(seen[first : first + 2])) * 2**20 for name, seen in self.rss.items()}


async def run_soak(folder: Path, *, seconds: float, pause_seconds: float = 0.3) -> SoakReport:
    """Ask an agent again and again while others chat. Raises `AssertionError` if a process keeps growing."""
    report, model_port, warm_at = SoakReport(seconds), unused_ports()[0], 0.0
    gateway = GatewayProcess(folder, json.dumps(_SPACE))
    command = [PYTHON, "-m", "mew_agent", "serve", "model", "--port", str(model_port)]
    model = ProgramProcess("model", folder, command, {})
    agent = ProgramProcess(
        "agent",
        folder,
        [PYTHON, str(PROGRAMS), "agent"],
        {
            "MEW_GATEWAY": f"ws://127.0.0.1:{gateway.port}",
            "MEW_SPACE": "soak",
            "MEW_PARTICIPANT_ID": "coder",
            "MEW_TOKEN": "c",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{model_port}/v1",
            "OPENAI_API_KEY": "key",
            "OPENAI_MODEL": "rehearsal",
            "MEW_AGENT_CONFIG": json.dumps({"store": str(folder / "agent.db")}),
        },
    )
    processes = {"gateway": gateway, "model": model, "agent": agent}
    url = f"ws://127.0.0.1:{gateway.port}"

    async def ask(ada: Participant) -> None:
        while True:
            text = f"Question {report.questions}. {_FILLER * 5}What do you know about tides?"
            await ada.ask_agent("coder", text, inactivity_seconds=60)
            report.questions += 1
            # Until then as fast as possible: the model keeps its newest requests, up to a bound.
            is_warm = anyio.current_time() >= warm_at
            await anyio.sleep(pause_seconds if is_warm else 0)

    async def talk(bob: Participant) -> None:
        while True:
            await bob.chat(f"{report.chats} {_FILLER}", to="ada")
            report.chats += 1
            await anyio.sleep(pause_seconds / 3)

    with ExitStack() as open_processes:
        for process in processes.values():
            open_processes.enter_context(closing(process))
        await gateway.start()
        model.launch()
        agent.launch()
        async with (
            Participant(url, space="soak", id="ada", token="a") as ada,
            Participant(url, space="soak", id="bob", token="b") as bob,
            anyio.create_task_group() as tasks,
        ):
            with anyio.fail_after(60):
                while "coder" not in ada.peers:
                    await anyio.sleep(0.05)
            await _send_first_chats(bob)
            warm_at = anyio.current_time() + seconds * WARM_UP / 2
            tasks.start_soon(ask, ada)
            tasks.start_soon(talk, bob)
            for _ in range(SAMPLES):
                await anyio.sleep(seconds / SAMPLES)
                for name, process in processes.items():
                    report.rss.setdefault(name, []).append(process.rss_bytes / 2**20)
            tasks.cancel_scope.cancel()
    for name, process in processes.items():
        assert "Traceback" not in process.output, f"{name} wrote a traceback:\n{process.output[-3000:]}"
    assert report.questions > 0, report
    assert all(grown < GROWTH_BYTES for grown in report.growth_bytes().values()), f"a process keeps growing:\n{report}"
    return report


async def _send_first_chats(bob: Participant) -> None:
    async def send() -> None:
        for _ in range(FIRST_CHATS // SENDERS):
            await bob.chat(_FILLER, to="ada")

    async with anyio.create_task_group() as senders:
        for _ in range(SENDERS):
            senders.start_soon(send)
