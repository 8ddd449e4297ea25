"""Items: which were sent, and the likely size of the rest."""

import pytest

from mew_agent.context.intervals import Items
from mew_agent.context.item_sizes import ItemSize
from mew_agent.tokens.projection import Calibration

TYPICAL = Calibration()


def items_of(*sizes: ItemSize) -> Items:
    items = Items()
    for size in sizes:
        items.add(size, TYPICAL)
    return items


def sent_by(items: Items, last_seq: int) -> tuple[list[int], int]:
    sizes, tokens, units = items.send(last_seq, TYPICAL)
    assert units == sum(size.features for size in sizes)
    return [size.seq for size in sizes], tokens


def test_the_unsent_sum_is_that_of_its_items_after_every_change() -> None:
    items = items_of(*(ItemSize(seq, 10.0 * seq) for seq in range(6)))
    assert items.unsent_tokens == 150 + 6 * 4
    assert sent_by(items, 1) == ([0, 1], 10 + 2 * 4)
    items.set([m for m in items.sizes if m.seq not in (3, 4)], items.sent_until, TYPICAL)
    assert [size.seq for size in items.unsent] == [2, 5]
    assert items.unsent_tokens == 20 + 50 + 2 * 4
    items.set([*items.sizes[:3], ItemSize(5, 1.0)], items.sent_until, TYPICAL)
    assert items.unsent_tokens == 20 + 1 + 2 * 4
    assert items.unsent_between(0, 9) == [items.sizes[2], ItemSize(5, 1.0)]
    assert sent_by(items, 7) == ([2, 5], 20 + 1 + 2 * 4)
    assert (items.unsent, items.unsent_tokens, items.sent_until) == ([], 0, 5)


def test_traits_are_counted_while_their_items_stay() -> None:
    items = items_of(ItemSize(0, 1.0, thinking=True), ItemSize(1, 1.0, tool_calls=True), ItemSize(2, 1.0))
    assert (items.thinking, items.unsteady) == (1, 2)
    items.set(items.sizes[1:], -1, TYPICAL)
    assert (items.thinking, items.unsteady, items.sent_until) == (0, 1, -1)


@pytest.mark.parametrize(
    ("sizes", "counted"),
    [
        pytest.param((), False, id="nothing"),
        pytest.param((ItemSize(0, 9.0, counted_tokens=8),), True, id="counted"),
        pytest.param((ItemSize(0, 9.0, known_tokens=7), ItemSize(1, 9.0, counted_tokens=8)), True, id="and reported"),
        pytest.param((ItemSize(0, 9.0, known_tokens=7),), False, id="only reported"),
        pytest.param((ItemSize(0, 9.0), ItemSize(1, 9.0, counted_tokens=8)), False, id="one of two"),
    ],
)
def test_it_is_counted_only_as_a_whole(sizes: tuple[ItemSize, ...], counted: bool) -> None:
    assert items_of(*sizes).is_unsent_counted is counted


def test_counts_that_do_not_fit_the_model_are_not_used() -> None:
    items = items_of(ItemSize(0, 100.0, counted_tokens=50))
    assert items.unsent_tokens == 54
    items.project(Calibration(counts_fit=False))
    assert items.unsent_tokens == 104
    assert not items.is_unsent_counted
