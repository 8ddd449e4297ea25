"""What survives five rounds if the prompt may be only so large a share of the session.

Shares are counted in characters, as `compaction-conformance-kit` counts its budgets.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from statistics import fmean
from typing import Any

from benchmarks.compaction_quality import held_out
from benchmarks.compaction_quality.kit import ROUNDS, kit_sessions, play_kit
from benchmarks.compaction_quality.strategies import Ours, SummaryCall

SHARES = (0.37, 0.30, 0.26)
RULES = ("safety rule", "safety_rule", "constraint", "hard_constraint")
BUDGETS = range(100, 900, 20)  # tokens of a summary

Found = list[tuple[str, bool]]  # for each fact its kind, and whether it is there after the last round
Play = Callable[[Ours], Awaitable[Found]]


async def play_session(ours: Ours, *, session: Any, canaries: Any) -> Found:
    """Play a session of the kit."""
    return await asyncio.to_thread(play_kit, ours, session, canaries)


async def play_held_out(ours: Ours, *, language: str, seed: int) -> Found:
    """Play a session of the held-out facts."""
    for turns in held_out.rounds(language, seed, ROUNDS):
        for turn in turns:
            ours.enter(turn)
        await ours.compact()
    context = ours.context()
    return [(fact.kind, fact.is_in(context)) for fact in held_out.read_texts(language).facts]


def groups(seeds: range) -> Iterator[tuple[str, list[Play]]]:
    """Yield each group of sessions by name."""
    for name, sessions in kit_sessions(seeds).items():
        yield f"kit, {name}", [partial(play_session, session=s, canaries=c) for s, c in sessions]
    for name in held_out.LANGUAGES:
        yield f"held out, {name}", [partial(play_held_out, language=name, seed=seed) for seed in seeds]


async def outcomes_of(play: Play, call: SummaryCall) -> list[tuple[float, Found]]:
    """Play a session with summaries of many sizes. Returns the share that each prompt had, and the facts in it."""
    outcomes = []
    for budget_tokens in BUDGETS:
        ours = Ours(call, most_summary_tokens=budget_tokens)
        found = await play(ours)
        outcomes.append((len(ours.context()) / ours.seen_chars, found))
    return outcomes


async def share_lines(name: str, plays: list[Play], call: SummaryCall) -> list[str]:
    """Return the facts of a group of sessions that the largest prompt within each share holds, as lines of text."""
    sessions = [await outcomes_of(play, call) for play in plays]
    lines = []
    for share in SHARES:
        fitting = [[one for one in outcomes if one[0] <= share] for outcomes in sessions]
        chosen = [max(outcomes, key=lambda one: one[0]) for outcomes in fitting if outcomes]
        kept = [fact for _, found in chosen for fact in found]
        rules = fmean(is_kept for kind, is_kept in kept if kind in RULES)
        used = fmean(used for used, _ in chosen)
        every = fmean(is_kept for _, is_kept in kept)
        lines.append(f"{name:<22} {used:>6.1%}   all {every:>4.0%}   rules {rules:>4.0%}")
    return lines
