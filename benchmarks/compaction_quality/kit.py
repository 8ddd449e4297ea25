"""The pipeline judged by `compaction-conformance-kit`, through the kit's own interface for compactors.

The kit hands a compactor the text of the round before. An agent keeps its history instead, so the adapter keeps one,
and enters two turns of the kit's small talk before each later round, so that there is something to compact.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.compaction_quality.session import Entry, Role
from benchmarks.compaction_quality.strategies import Strategy

ROUNDS = 5
SMALL_TALK: tuple[tuple[Role, str], ...] = (
    ("user", "Let's review the module layout for the ingestion pipeline."),
    ("assistant", "Acknowledged. Continuing with the plan."),
    ("user", "The retry logic uses exponential backoff with jitter, capped at 30s."),
    ("assistant", "Acknowledged. Continuing with the plan."),
)


class KitCompactor:
    """One of our strategies as the kit wants it."""

    def __init__(self, name: str, strategy: Strategy) -> None:
        self.name, self._strategy, self._number = name, strategy, 0
        self._turn: list[Entry] = []

    def compact(self, turns: list[Any], round_num: int = 1) -> Any:
        """Compact the session of the kit, and in later rounds what followed."""
        from compaction_kit.compacted import CompactedContext

        said = [(turn.role, turn.text) for turn in turns if turn.role != "system"] if round_num == 1 else SMALL_TALK
        for role, text in said:
            if role == "user" or not self._number:
                self._turn = []
            self._number += 1
            self._turn.append(Entry(role, text, f"m-{self._number}", "user" if role == "user" else None))
            if role == "assistant":
                self._strategy.enter(self._turn)
        asyncio.run(self._strategy.compact())
        return CompactedContext(self._strategy.context(), self.name, round_num)


def kit_sessions(seeds: Iterable[int]) -> dict[str, list[tuple[Any, Any]]]:
    """Return the seeded, random and generated sessions of the kit, each with its facts."""
    from compaction_kit.canaries import seeded_canaries
    from compaction_kit.corpus import build_random_session
    from compaction_kit.generated import build_generated_session
    from compaction_kit.session import build_seeded_session

    seeds = list(seeds)
    return {
        "seeded": [(build_seeded_session(), seeded_canaries())],
        "random": [build_random_session(seed) for seed in seeds],
        "generated": [build_generated_session(seed) for seed in seeds],
    }


def survival(name: str, make: Callable[[], Strategy], *, seeds: range = range(8)) -> dict[str, list[float]]:
    """For each type of the kit, the mean survival in each round over its seeded, random and generated sessions."""
    from compaction_kit.canaries import CanaryType
    from compaction_kit.runner import run_conformance

    cases = [case for cases in kit_sessions(seeds).values() for case in cases]
    curves: dict[str, list[list[float]]] = {kind.value: [] for kind in CanaryType}
    for session, canaries in cases:
        run = run_conformance(session, KitCompactor(name, make()), rounds=ROUNDS, canaries=canaries)
        for kind in CanaryType:
            curves[kind.value].append(run.survival_curve(kind))
    return {kind: [sum(at) / len(at) for at in zip(*found, strict=True)] for kind, found in curves.items()}


def play_kit(strategy: Strategy, session: Any, canaries: Any) -> list[tuple[str, bool]]:
    """Return for each fact of a session its type, and whether it is there after the last round."""
    from compaction_kit.runner import run_conformance

    run = run_conformance(session, KitCompactor("", strategy), rounds=ROUNDS, canaries=canaries)
    return [(one.type.value, run.rounds[-1].survived[one.id]) for one in canaries]


async def kit_table(made: Mapping[str, Callable[[], Strategy]]) -> str:
    """The survival of each strategy as lines of text."""
    lines = []
    for name, make in made.items():
        curves = await asyncio.to_thread(survival, name, make)
        lines.append(f"{name} by compaction-conformance-kit, rounds 1 to {ROUNDS}")
        lines += [f"  {kind:<20}" + "".join(f"{kept:>6.0%}" for kept in curve) for kind, curve in curves.items()]
    return "\n".join(lines)
