"""Intervals between reported calls: prices, sums, and changes to all of a kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.context.intervals import Bulk, Interval, Intervals, Kind, Pool, apportion, fit, split
from mew_agent.context.item_sizes import ItemSize
from mew_agent.tokens.projection import Calibration

TYPICAL = Calibration()


def filled(*kinds: Kind, tokens: int = 100) -> Intervals:
    """One interval of a message and a tool result for each kind."""
    intervals = Intervals()
    for number, kind in enumerate(kinds):
        intervals.append(items_of(number + 1)[-2:], tokens, kind, 92.0, TYPICAL)
    return intervals


def items_of(count: int) -> list[ItemSize]:
    """The items of so many intervals."""
    return [ItemSize(seq, 46.0, tool_result=seq % 2 == 1) for seq in range(2 * count)]


def resize(pool: Pool, messages: int, tools: int) -> None:
    pool.messages.tokens, pool.tools.tokens = messages, tools


def held(intervals: Intervals) -> int:
    return sum(intervals.tokens)


def test_sums_are_separate_by_kind_and_for_tool_results() -> None:
    intervals = filled("lump", "measured", "exact")
    assert intervals.tokens == (150, 150)
    assert [pool.tokens for pool in (intervals.lumps, intervals.measured, intervals.exact)] == [100, 100, 100]
    assert not intervals.are_exact
    assert filled("exact", "exact").are_exact
    assert not Intervals().are_exact
    assert (intervals.units, len(list(intervals))) == (276.0, 3)


@pytest.mark.parametrize(
    ("first", "last", "tokens", "kind"),
    [
        pytest.param(4, 5, 100, "exact", id="one"),
        pytest.param(2, 5, 200, "measured", id="the weakest kind counts"),
        pytest.param(0, 5, 300, "lump", id="all"),
        pytest.param(4, 4, 50, "lump", id="a part"),
        pytest.param(9, 12, 0, None, id="none"),
    ],
)
def test_a_price_says_how_it_is_known(first: int, last: int, tokens: int, kind: Kind | None) -> None:
    assert filled("lump", "measured", "exact").price(items_of(3), first, last, TYPICAL) == (tokens, kind)


def test_doubt_moves_the_exact_ones_so_far_and_none_of_later() -> None:
    intervals = filled("exact", "measured", "exact")
    intervals.doubt_all()
    assert intervals.exact.tokens == 0
    intervals.append([ItemSize(6, 96.0)], 100, "exact", 96.0, TYPICAL)
    assert [interval.kind for interval in intervals] == ["measured", "measured", "measured", "exact"]
    intervals.doubt_all()
    intervals.doubt_all()
    assert {interval.kind for interval in intervals} == {"measured"}
    assert held(intervals) == sum(interval.tokens for interval in intervals) == 400


def test_resizing_scales_those_that_were_there_and_none_that_join_later() -> None:
    intervals = filled("measured", "exact", "measured")
    resize(intervals.measured, 200, 50)
    intervals.append([ItemSize(6, 96.0)], 100, "measured", 96.0, TYPICAL)
    intervals.doubt_all()
    assert [(i.messages, i.tools) for i in intervals] == [(100, 25), (50, 50), (100, 25), (100, 0)]
    resize(intervals.measured, 175, 50)
    assert [(i.messages, i.tools) for i in intervals] == [(50, 13), (25, 25), (50, 12), (50, 0)]


@pytest.mark.parametrize("kind", ["measured", "lump"])
def test_intervals_resized_to_zero_can_grow_again(kind: Kind) -> None:
    intervals = filled(kind, kind)
    pool = intervals.measured if kind == "measured" else intervals.lumps
    resize(pool, 0, 0)
    assert [interval.tokens for interval in intervals] == [0, 0]
    resize(pool, 30, 0)
    assert sum(interval.tokens for interval in intervals) == held(intervals) == 30


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 500), st.sampled_from(["exact", "measured", "lump"])),
        st.tuples(st.just("doubt"), st.none(), st.none()),
        st.tuples(st.just("measured"), st.integers(0, 900), st.integers(0, 900)),
        st.tuples(st.just("lumps"), st.integers(0, 900), st.integers(0, 900)),
        st.tuples(st.just("cut"), st.integers(0, 12), st.integers(0, 12)),
        st.tuples(st.just("look"), st.none(), st.none()),
    ),
    max_size=25,
)


@given(STEPS)
def test_prices_of_intervals_always_sum_to_their_pool(
    steps: list[tuple[str, object, object]],
) -> None:
    intervals, held_items, seq = Intervals(), list[ItemSize](), 0
    for name, one, other in steps:
        match name, one, other:
            case "append", int(tokens), str(kind):
                items = [ItemSize(seq, 10.0), ItemSize(seq + 1, 30.0, tool_result=tokens % 2 == 0)]
                intervals.append(items, tokens, kind, 40.0, TYPICAL)  # type: ignore[arg-type]
                held_items += items
                seq += 2
            case "doubt", _, _:
                intervals.doubt_all()
            case "measured", int(messages), int(tools) if intervals.measured.tokens:
                resize(intervals.measured, messages, tools if intervals.measured.tools.tokens else 0)
            case "lumps", int(messages), int(tools) if intervals.lumps.tokens:
                resize(intervals.lumps, messages, tools if intervals.lumps.tools.tokens else 0)
            case "cut", int(first), int(last):
                before, (freed, _) = held(intervals), intervals.price(held_items, first, last, TYPICAL)
                intervals.cut(held_items, first, last, TYPICAL)
                held_items = [item for item in held_items if not first <= item.seq <= last]
                assert held(intervals) == before - freed
            case _:
                assert sum(interval.tools for interval in intervals) == intervals.tokens[1]
        assert min(intervals.tokens) >= 0
    kinds = [interval.kind for interval in intervals]
    assert intervals.are_exact == (bool(kinds) and set(kinds) == {"exact"})
    assert sum(interval.tokens for interval in intervals) == held(intervals)
    assert min((min(i.messages, i.tools) for i in intervals), default=0) >= 0
    prices = intervals.item_prices(held_items, TYPICAL)
    assert sum(prices.values()) == held(intervals)
    assert list(prices) == [size.seq for size in held_items]


def test_stubs_turn_their_intervals_into_lumps() -> None:
    intervals = filled("exact", "exact")
    intervals.replace(items_of(2), {1: ItemSize(1, 6.0, tool_result=True)}, {1: 40}, TYPICAL)
    assert [(i.kind, i.messages, i.tools) for i in intervals] == [("lump", 50, 10), ("exact", 50, 50)]
    assert intervals.units == 3 * 46 + 6


def test_lumps_are_projected_in_one_step_as_their_items_would_be() -> None:
    bulk = Bulk()
    bulk.add([ItemSize(0, 10.0), ItemSize(1, 20.0, known_tokens=7), ItemSize(2, 5.0, counted_tokens=6)], TYPICAL)
    assert bulk.project(TYPICAL) == 10 + 7 + 6 + 3 * 4
    assert Bulk().project(TYPICAL) == 0
    assert filled("lump", "exact").lump_items.project(TYPICAL) == 100


def test_sharing_a_figure_keeps_known_sizes() -> None:
    sizes = [ItemSize(0, 16.0), ItemSize(1, 90.0, known_tokens=26), ItemSize(2, 36.0, tool_result=True)]
    assert split(90, sizes, TYPICAL) == [(0, 20, False), (1, 30, False), (2, 40, True)]
    assert sum(tokens for _, tokens, _ in split(10, sizes, TYPICAL)) == 10


SIZES = st.lists(st.integers(0, 100_000), min_size=1, max_size=8)


@given(st.integers(0, 1_000_000), SIZES)
def test_shares_are_never_negative_and_sum_to_the_figure(total: int, sizes: list[int]) -> None:
    for shares in (apportion(total, sizes), fit(total, sizes, sizes), fit(total, sizes, [0.0] * len(sizes))):
        assert sum(shares) == total
        assert min(shares) >= 0
        assert len(shares) == len(sizes)


def test_equal_weights_share_equally_and_the_rest_goes_to_the_first() -> None:
    assert apportion(10, [1, 1, 1]) == [4, 3, 3]
    assert apportion(7, [0, 0]) == [7, 0]
    assert apportion(5, []) == []


@pytest.mark.parametrize(
    ("total", "wanted", "doubts", "fitted"),
    [
        (110, [10, 90], [10, 90], [10, 100]),  # nearly all of what is missing belongs to the more doubtful part
        (110, [10, 90], [1, 0], [20, 90]),
        (100, [10, 90], [10, 90], [10, 90]),
        (50, [50, 50], [50, 50], [25, 25]),
    ],
)
def test_a_projection_is_corrected_where_its_error_most_likely_lies(
    total: int, wanted: list[int], doubts: list[int], fitted: list[int]
) -> None:
    assert fit(total, wanted, doubts) == fitted


def test_a_correction_larger_than_the_parts_scales_them_all_alike() -> None:
    assert fit(12, [100, 300], [100, 300]) == [3, 9]


def test_a_doubt_costs_the_intervals_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    class Counted(Interval):
        def __getattribute__(self, name: str) -> object:
            nonlocal read
            read += name == "kind"
            return super().__getattribute__(name)

    monkeypatch.setattr("mew_agent.context.intervals.Interval", Counted)
    intervals = Intervals()
    for seq in range(1_000):
        intervals.append([ItemSize(seq, 96.0)], 100, "exact", 96.0, TYPICAL)
        intervals.doubt_all()
    assert read < 10 * 1_000
