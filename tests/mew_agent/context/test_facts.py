"""The accounts are a fold: the same facts give the same figures, in one go or one by one."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from mew_agent.context.facts import (
    Appended,
    Cleared,
    ContextFact,
    Cut,
    CutCounted,
    Described,
    PrefixCounted,
    PutBack,
    Replaced,
    Reported,
    Summarised,
)
from mew_agent.context.item_sizes import ItemSize
from mew_agent.context.ledger import Ledger, fold
from mew_agent.context.preamble import FixedTexts
from mew_agent.context.reconciliation import Terms

SEQS = st.integers(0, 30)
TOKENS = st.integers(0, 3000)
TERMS = st.builds(Terms, st.sampled_from(["a", "b"]), st.sampled_from(["f", "g"]), st.sampled_from([None, "one"]))


def facts_of(kinds: list[tuple[str, int, int, Terms]]) -> list[ContextFact]:
    """A history in which every fact is possible: seqs rise, and stubs are of items that are there."""
    facts: list[ContextFact] = []
    held: dict[int, ItemSize] = {}
    for number, (kind, one, other, terms) in enumerate(kinds):
        first, last = sorted((one % 30, other % 30))
        made: dict[str, Callable[[], ContextFact]] = {
            "append": lambda: Appended(held.setdefault(number, ItemSize(number, float(one), tool_result=one % 3 == 0))),  # noqa: B023
            "describe": lambda: Described(FixedTexts(float(one), float(other % 50))),  # noqa: B023
            "count": lambda: PrefixCounted(one % 99),  # noqa: B023
            "report": lambda: Reported(one, terms, max(held, default=-1)),  # noqa: B023
            "cut": lambda: Cut(first, last),  # noqa: B023
            "stub": lambda: Replaced(tuple(ItemSize(seq, 3.0, tool_result=True) for seq in held if seq == first)),  # noqa: B023
            "summarise": lambda: Summarised(ItemSize(-1, float(one))),  # noqa: B023
            "correct": lambda: CutCounted(one % 40 - 20, other),  # noqa: B023
            "clear": Cleared,
        }
        fact = made[kind]()
        facts.append(fact)
        if isinstance(fact, Cut):
            gone = tuple(held.pop(seq) for seq in list(held) if first <= seq <= last)
            if one % 2:
                held |= {size.seq: size for size in gone}
                facts.append(PutBack(gone, (), {size.seq: 7 for size in gone}, -1))
        elif isinstance(fact, Cleared):
            held.clear()
    return facts


KINDS = ["append", "append", "append", "report", "report", "describe", "count", "cut", "stub", "summarise", "correct"]
HISTORIES = st.lists(st.tuples(st.sampled_from([*KINDS, "clear"]), TOKENS, TOKENS, TERMS), max_size=30).map(facts_of)


@given(HISTORIES, st.integers(0, 30))
def test_folding_in_two_parts_gives_the_same_ledger(facts: list[ContextFact], at: int) -> None:
    assert fold(facts[at:], fold(facts[:at])) == fold(facts)


@given(HISTORIES)
def test_parts_sum_to_the_prompt_after_every_fact(facts: list[ContextFact]) -> None:
    ledger = Ledger()
    for fact in facts:
        ledger.apply(fact)
        parts = ledger.parts
        held = parts.prefix + parts.summary + parts.pins + parts.messages + parts.tool_results
        assert ledger.prompt_tokens in (None, held)
        assert min(parts[:6]) >= 0
        assert sum(ledger.item_prices().values()) == parts.messages + parts.tool_results + parts.unsent
