"""What compactions keep, on a small part of `benchmarks.compaction_quality`: a change that loses facts fails here."""

import pytest

from benchmarks.compaction_quality import strategies
from benchmarks.compaction_quality.__main__ import GOALS, OWN, measure
from benchmarks.compaction_quality.kit import survival
from benchmarks.compaction_quality.session import BINDING, KINDS, Session
from mew_agent.compaction.extract import extract
from mew_agent.context.history import Item

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


async def test_the_benchmark_counts_the_losses_of_truncation() -> None:
    outcome = await measure("truncation", strategies.Truncation, seeds=range(1), rounds=3, turns=TURNS)
    lost = [kind for kind in KINDS if outcome.kept[kind][3] < GOALS[5]]
    assert set(BINDING) <= set(lost)


def test_the_conformance_kit_finds_nothing_lost() -> None:
    curves = survival("ours", OWN["ours, extract"], seeds=range(2))
    assert {kind: curve[-1] for kind, curve in curves.items()} == dict.fromkeys(curves, 1.0)


def facts_of(*texts: str) -> list[str]:
    """What the extract keeps of questions by ada, each of which the agent answers with the words after `->`."""
    items = []
    for turn, text in enumerate(texts):
        asked, _, answered = text.partition(" -> ")
        items.append(Item(2 * turn, "user", asked, turn, f"u{turn}", "t", name="ada"))
        items.append(Item(2 * turn + 1, "assistant", answered or "OK.", turn, f"a{turn}", "t"))
    return [fact.text for fact in extract(items).facts]


def test_rules_with_one_label_do_not_replace_each_other() -> None:
    rules = ("HARD CONSTRAINT: Spend at most 500 EUR.", "HARD CONSTRAINT: No deploys on Fridays.")
    assert set(rules) <= set(facts_of(*rules, "Go on.", "Go on."))


def test_a_labelled_value_is_replaced_by_the_new_one() -> None:
    kept = facts_of("Hello there.", "FACT: The cap is 500.", "FACT: The cap is 700.", "Go on.", "Go on.")
    assert "FACT: The cap is 700." in kept
    assert "FACT: The cap is 500." not in kept


def test_a_request_leaves_once_it_is_done() -> None:
    asked = "Please go through src/run.py for me."
    assert asked in facts_of("Hello there.", asked, "Go on.", "Go on.")
    assert asked not in facts_of("Hello there.", f"{asked} -> I read src/run.py.", "Go on.", "Go on.")


def test_pasted_lines_do_not_crowd_out_sentences_of_people() -> None:
    pasted = "\n".join(f"worker-{number} took {number * 37} ms" for number in range(200))
    kept = facts_of("Hello there.", f"{pasted}\nNobody may touch prod-7.", "Go on.", "Go on.")
    assert "Nobody may touch prod-7." in kept
    assert sum("took" in text for text in kept) < 10
