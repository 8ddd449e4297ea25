"""What compactions keep, on a small part of `benchmarks.compaction_quality`: a change that loses facts fails here."""

import pytest

from benchmarks.compaction_quality import strategies
from benchmarks.compaction_quality.__main__ import GOALS, OWN, measure
from benchmarks.compaction_quality.kit import survival
from benchmarks.compaction_quality.session import BINDING, KINDS, Session

ROUNDS, TURNS = 5, 24


@pytest.mark.parametrize("name", OWN)
async def test_facts_survive_five_rounds(name: str) -> None:
    outcome = await measure(name, OWN[name], seeds=range(1), rounds=ROUNDS, turns=TURNS)
    assert {kind: outcome.at(ROUNDS, (kind,)) for kind in BINDING} == dict.fromkeys(BINDING, 1.0)
    assert list(outcome.missed) == []
    assert outcome.stale == 0


async def test_a_pin_is_unchanged_after_a_compaction() -> None:
    ours = strategies.Ours(strategies.quarter)
    for turn in Session(1).round(1, TURNS):
        ours.enter(turn)
    await ours.compact()
    assert strategies.PIN in ours.context()


async def test_the_benchmark_sees_what_truncation_loses() -> None:
    outcome = await measure("truncation", strategies.Truncation, seeds=range(1), rounds=3, turns=TURNS)
    lost = [kind for kind in KINDS if outcome.kept[kind][3] < GOALS[5]]
    assert set(BINDING) <= set(lost)


def test_the_conformance_kit_finds_nothing_lost() -> None:
    curves = survival("ours", OWN["ours, extract"], seeds=range(2))
    assert {kind: curve[-1] for kind, curve in curves.items()} == dict.fromkeys(curves, 1.0)
