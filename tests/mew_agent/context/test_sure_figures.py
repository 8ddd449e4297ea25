"""No figure that is labelled as sure is wrong, in random histories of `benchmarks.sure_figures`."""

from collections import Counter
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.sure_figures import Template, replay, wrong_and_sure

MANY = 100_000 if settings().max_examples > 1_000 else 120
"""How many histories: all of them in `make test-long`."""


@settings(max_examples=MANY)
@example("retokenizing", 319)  # question and reply differ from the counts by amounts that cancel out
@example("retokenizing", 3813)  # only a projected interval differs from the counts
@given(st.sampled_from(get_args(Template)), st.integers(0, 2**32))
def test_no_figure_labelled_as_sure_is_wrong(template: Template, seed: int) -> None:
    found: Counter[str] = Counter()
    replay(seed, template, found)
    assert wrong_and_sure(found) == []


def test_an_additive_template_gets_sure_figures() -> None:
    found: Counter[str] = Counter()
    for seed in range(1, 120, 2):  # with a tokenizer
        replay(seed, "additive", found)
    assert found["call bounds exact"]
    assert found["call bounds tokenizer"]
    assert found["net tokenizer"]
    assert found["gross tokenizer"]


@pytest.mark.parametrize(("template", "is_named"), [("routed", True), ("unnamed", False)])
def test_exact_prices_need_a_machine_that_is_named(template: Template, *, is_named: bool) -> None:
    found: Counter[str] = Counter()
    for seed in range(200):
        replay(seed, template, found)
    assert bool(found["call bounds exact"]) is is_named
    assert wrong_and_sure(found) == []
