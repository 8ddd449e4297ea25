"""The parts of a prefix: they sum to it, and each says how it is known."""

from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.payloads.participant import MAX_PREFIX_PARTS

from mew_agent.context.preamble import PrefixText, prefix_parts
from mew_agent.tokens.projection import Calibration

NOBODY = PrefixText("system_prompt", "")


def words_in(text: str) -> int:
    return len(text.split())


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=300),
    tokens=st.integers(0, 20_000),
    counts=st.booleans(),
)
def test_the_parts_of_a_prefix_sum_to_it_and_are_bounded(sizes: list[int], tokens: int, *, counts: bool) -> None:
    texts = [PrefixText("system_prompt", "Be brief and kind. " * sizes[0])]
    texts += [PrefixText("tool", "word " * size, f"tool-{number}") for number, size in enumerate(sizes)]
    parts = prefix_parts(texts, tokens, Calibration(), words_in if counts else lambda _text: None)
    assert sum(part.tokens for part in parts) == tokens
    assert len(parts) <= MAX_PREFIX_PARTS
    named, summed = sum(part.part == "tool" for part in parts), sum(part.count or 0 for part in parts)
    assert named + summed == len(sizes)
    ranked = [part.tokens for part in parts if part.part == "tool"]
    assert ranked == sorted(ranked, reverse=True)


def test_the_smallest_of_many_tools_are_summed_up() -> None:
    texts = [PrefixText("tool", "word " * (number + 1), f"tool-{number}") for number in range(MAX_PREFIX_PARTS + 2)]
    *named, summed = prefix_parts(texts, 100_000, Calibration(), lambda _text: None)
    assert (len(named), summed.part, summed.count) == (MAX_PREFIX_PARTS - 1, "other_tools", 3)
    assert 0 < summed.tokens == 100_000 - sum(part.tokens for part in named)


def test_tools_share_the_rest_of_a_counted_system_prompt() -> None:
    texts = [PrefixText("system_prompt", "one two three four"), PrefixText("tool", "a b", "x"), NOBODY]
    system, tool = prefix_parts(texts, 30, Calibration(), words_in)
    assert (system.tokens, system.basis) == (4, "tokenizer")
    assert (tool.name, tool.tokens, tool.basis) == ("x", 26, "projected")
    (alone,) = prefix_parts(texts[:1], 30, Calibration(), words_in)
    assert (alone.tokens, alone.basis) == (30, "projected")
