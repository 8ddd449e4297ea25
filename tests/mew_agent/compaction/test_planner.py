"""Plans: never half a pair, never the question being answered, and the cheapest first."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.compaction.planner import (
    MIN_SUMMARISABLE_TOKENS,
    STUB_TOKENS,
    SUMMARY_MAX_TOKENS,
    CompactionPlan,
    NothingToDo,
    plan_compaction,
    plan_forget,
    summary_budget_tokens,
)
from mew_agent.context.history import CLEARED_RESULT, History
from mew_agent.model.interface import ToolCall
from mew_agent.tokens.projection import Calibration, features
from tests.support.histories import TURNS, MadeTurn, history_of, splits_a_pair

PREFIX = 200
WINDOW = 20_000


def planned(
    history: History, prices: Mapping[int, int], target: int | None, *, answering: int | None = None, **more: Any
) -> CompactionPlan | NothingToDo:
    summary = more.pop("summary", 0)
    return plan_compaction(
        history,
        prices,
        present_tokens=PREFIX + summary + sum(prices[item.seq] for item in history.items),
        window_tokens=more.pop("window", WINDOW),
        target_tokens=target,
        summary_tokens=summary,
        answering_turn=answering,
    )


def flat(history: History, tokens: int) -> dict[int, int]:
    return {item.seq: tokens for item in history.items}


def left(history: History, found: CompactionPlan) -> list[int]:
    first, last = found.evict or (0, -1)
    return [item.seq for item in history.items if not first <= item.seq <= last]


def size_after(history: History, prices: dict[int, int], found: CompactionPlan, summary: int = 0) -> int:
    """The size of the next prompt if the summary uses its whole budget."""
    remaining = sum(STUB_TOKENS if seq in found.stub_seqs else prices[seq] for seq in left(history, found))
    return PREFIX + remaining + (found.summary_budget_tokens or summary)


def after(
    history: History, prices: dict[int, int], found: CompactionPlan, summary: int
) -> tuple[History, dict[int, int], int]:
    """Carry the plan out with a summary that uses its whole budget."""
    prices = dict(prices)
    if found.stub_seqs:
        history.stub(found.stub_seqs)
        prices.update(dict.fromkeys(found.stub_seqs, STUB_TOKENS))
    if found.evict is not None:
        history.evict(*found.evict, None)
        summary = found.summary_budget_tokens or summary
    return history, prices, summary


# -- a request without a target ----------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("answering", [False, True])
def test_without_a_target_the_newest_two_turns_and_the_question_stay(turns: int, answering: bool) -> None:
    history = history_of([MadeTurn((2,))] * turns + [MadeTurn((1,), answered=False)] * answering)
    found = planned(history, flat(history, 50), None, answering=history.turn if answering else None)
    kept = {item.seq for item in history.items if item.turn > turns - 2}
    if turns <= 2:
        assert found == NothingToDo("no_history")
    else:
        assert isinstance(found, CompactionPlan)
        assert set(left(history, found)) == kept
        assert found.stub_seqs == ()


@pytest.mark.parametrize("price", [1, 50, 5_000])
def test_without_a_target_the_fill_does_not_matter(price: int) -> None:
    history = history_of([MadeTurn()] * 5)
    assert isinstance(planned(history, flat(history, price), None, window=10**6), CompactionPlan)


# -- nothing to do -----------------------------------------------------------------------------------------


def test_an_empty_history_has_nothing_to_compact() -> None:
    assert planned(History(), {}, None) == NothingToDo("no_history")
    assert planned(History(), {}, 0) == NothingToDo("no_history")


@pytest.mark.parametrize(("target", "nothing"), [(499, False), (500, True), (501, True), (10**9, True)])
def test_a_target_at_or_above_the_present_size_is_skipped(target: int, nothing: bool) -> None:
    history = history_of([MadeTurn()] * 3)
    assert (planned(history, flat(history, 50), target) == NothingToDo("already_below_target")) is nothing


def test_the_turn_being_answered_is_never_compacted() -> None:
    history = history_of([MadeTurn(answered=False)])
    for target in (None, 0):
        assert planned(history, flat(history, 900), target, answering=history.turn) == NothingToDo("no_history")


# -- cheapest first ----------------------------------------------------------------------------------------


def with_results(turns: int, result_tokens: int) -> tuple[History, dict[int, int]]:
    history = history_of([MadeTurn((1,))] * turns)
    return history, {item.seq: result_tokens if item.role == "tool" else 20 for item in history.items}


def test_old_tool_outputs_are_cleared_before_turns_are_summarised() -> None:
    history, prices = with_results(5, 1_000)
    found = planned(history, prices, 4_000)
    assert isinstance(found, CompactionPlan)
    assert found.evict is None
    assert found.stub_seqs == (2, 6)
    assert size_after(history, prices, found) <= 4_000


def test_the_results_of_one_batch_are_cleared_together() -> None:
    history = history_of([MadeTurn((3, 2))] * 4)
    prices = {item.seq: 1_000 if item.role == "tool" else 20 for item in history.items}
    found = planned(history, prices, PREFIX + sum(prices.values()) - 1)
    assert isinstance(found, CompactionPlan)
    assert found.stub_seqs == (2, 3, 4)


def test_only_as_many_outputs_are_cleared_as_the_target_needs() -> None:
    history, prices = with_results(6, 1_000)
    present = PREFIX + sum(prices.values())
    found = planned(history, prices, present - 1)
    assert isinstance(found, CompactionPlan)
    assert found.stub_seqs == (2,)


def test_as_few_of_the_oldest_turns_as_possible_leave() -> None:
    history = history_of([MadeTurn()] * 20)
    prices = flat(history, 100)  # present: 4,200
    found = planned(history, prices, 3_200)
    assert isinstance(found, CompactionPlan)
    assert (found.evict, found.stub_seqs) == ((0, 19), ())
    assert (found.evicted_tokens, found.summary_budget_tokens) == (2_000, 1_000)
    assert size_after(history, prices, found) == 3_200
    assert planned(history, prices, 3_201) == found
    one_more = planned(history, prices, 3_199)
    assert isinstance(one_more, CompactionPlan)
    assert one_more.evict == (0, 21)


def test_turns_leave_and_outputs_are_cleared_together() -> None:
    history = history_of([MadeTurn()] * 8 + [MadeTurn((1,))] * 4)
    prices = {item.seq: 1_000 if item.role == "tool" else 100 for item in history.items}
    found = planned(history, prices, 4_300)  # present: 7,000; clearing all but the newest two saves 1,904
    assert isinstance(found, CompactionPlan)
    assert (found.evict, found.stub_seqs) == ((0, 15), (18, 22))
    assert size_after(history, prices, found) == 4_296


def test_the_newest_turns_lose_outputs_before_they_leave() -> None:
    history, prices = with_results(2, 5_000)
    found = planned(history, prices, 1_000)
    assert isinstance(found, CompactionPlan)
    assert (found.evict, found.stub_seqs) == (None, (2, 6))


def test_a_result_that_no_reply_has_read_is_never_cleared() -> None:
    history = history_of([MadeTurn((1, 2), answered=False)])
    prices = {item.seq: 1_000 for item in history.items}
    found = planned(history, prices, 0, answering=history.turn)
    assert isinstance(found, CompactionPlan)
    assert found.stub_seqs == (2,)  # the first result; the batch of two after it waits for its reply


def test_a_cleared_result_is_not_cleared_again() -> None:
    history, prices = with_results(5, 1_000)
    history.stub([2, 6])
    found = planned(history, prices, 1)
    assert isinstance(found, CompactionPlan)
    assert not {2, 6} & set(found.stub_seqs)


def test_turns_too_small_for_a_summary_leave_without_one() -> None:
    history = history_of([MadeTurn()] * 3)
    found = planned(history, flat(history, 10), None)
    assert isinstance(found, CompactionPlan)
    assert (found.summary_budget_tokens, found.evicted_tokens) == (0, 20)


def test_the_budget_has_room_for_the_previous_summary() -> None:
    history = history_of([MadeTurn()] * 4)
    alone = planned(history, flat(history, 60), None)
    merged = planned(history, flat(history, 60), None, summary=1_000)
    assert isinstance(alone, CompactionPlan)
    assert isinstance(merged, CompactionPlan)
    assert merged.summary_budget_tokens > 600 > alone.summary_budget_tokens


@pytest.mark.parametrize(
    ("evicted", "window", "summary", "budget"),
    [
        (MIN_SUMMARISABLE_TOKENS - 1, 128_000, 0, 0),
        (MIN_SUMMARISABLE_TOKENS, 128_000, 0, 48),
        (1_000, 128_000, 0, 500),
        (100_000, 128_000, 0, SUMMARY_MAX_TOKENS),
        (10_000, 8_000, 0, 800),
        (10_000, 200, 0, 128),
        (200, 128_000, 1_000, 1_100),
        (10, 128_000, 1_000, 1_005),
    ],
)
def test_the_summary_budget_has_three_upper_bounds(evicted: int, window: int, summary: int, budget: int) -> None:
    assert summary_budget_tokens(evicted, window, summary) == budget


@given(st.uuids(version=4), st.floats(0.33, 1.15))
def test_a_note_is_no_larger_than_planned(name: Any, k: float) -> None:
    note = CLEARED_RESULT.format(id=name)
    assert Calibration(100 * k, 100).project(features(note)) <= STUB_TOKENS


# -- any history -------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[History, dict[int, int], int | None, int | None, int]:
    history = history_of(draw(TURNS))
    prices = {item.seq: draw(st.integers(0, 3_000)) for item in history.items}
    answering = history.turn if history.turn and draw(st.booleans()) else None
    target = draw(st.none() | st.integers(0, 30_000))
    return history, prices, target, answering, draw(st.sampled_from([0, 0, 300, 2_048]))


@given(cases())
def test_no_plan_splits_a_pair_a_turn_or_the_question(
    case: tuple[History, dict[int, int], int | None, int | None, int],
) -> None:
    history, prices, target, answering, summary = case
    found = planned(history, prices, target, answering=answering, summary=summary)
    if isinstance(found, NothingToDo):
        return
    by_seq = {item.seq: item for item in history.items}
    if found.evict is not None:
        first, last = found.evict
        assert first == history.items[0].seq
        assert not splits_a_pair(history, first, last)
        gone = {item.turn for item in history.items if first <= item.seq <= last}
        assert not gone & {by_seq[seq].turn for seq in left(history, found)}
        assert answering not in gone
        assert found.evicted_tokens == sum(prices[seq] for seq in by_seq if first <= seq <= last)
        assert not {seq for seq in found.stub_seqs if seq <= last}
    assert all(by_seq[seq].role == "tool" for seq in found.stub_seqs)
    unread = max((item.seq for item in history.items if item.role == "assistant"), default=-1)
    assert all(seq < unread for seq in found.stub_seqs)


@given(cases())
def test_a_plan_reaches_every_reachable_target(
    case: tuple[History, dict[int, int], int | None, int | None, int],
) -> None:
    history, prices, target, answering, summary = case
    found = planned(history, prices, target, answering=answering, summary=summary)
    if target is None or found == NothingToDo("already_below_target"):
        return
    present = PREFIX + summary + sum(prices.values())
    turns = sorted({item.turn for item in history.items if item.turn != answering})
    unread = max((item.seq for item in history.items if item.role == "assistant"), default=-1)
    sizes = []
    for count in range(len(turns) + 1):
        gone = [item for item in history.items if item.turn in turns[:count]]
        gross = sum(prices[item.seq] for item in gone)
        budget = summary_budget_tokens(gross, WINDOW, summary)
        size = present - gross + budget - (summary if budget else 0)
        size -= sum(
            prices[item.seq] - STUB_TOKENS
            for item in history.items
            if item not in gone and item.role == "tool" and item.seq < unread and prices[item.seq] > 2 * STUB_TOKENS
        )
        sizes.append(size)
    if isinstance(found, CompactionPlan):
        assert size_after(history, prices, found, summary) <= max(target, min(sizes))
        assert size_after(history, prices, found, summary) < present
    else:
        assert min(sizes) >= present


@given(cases())
def test_repeated_plans_reach_a_fixed_point(
    case: tuple[History, dict[int, int], int | None, int | None, int],
) -> None:
    history, prices, target, answering, summary = case
    for _ in range(len(history.items) + 2):
        found = planned(history, prices, target, answering=answering, summary=summary)
        if isinstance(found, NothingToDo):
            break
        history, prices, summary = after(history, prices, found, summary)
        prices = {item.seq: prices[item.seq] for item in history.items}
        if target is not None and PREFIX + summary + sum(prices.values()) <= target:
            again = planned(history, prices, target, answering=answering, summary=summary)
            assert again == NothingToDo("already_below_target")
    assert isinstance(planned(history, prices, target, answering=answering, summary=summary), NothingToDo)


class CountedPrices(Mapping[int, int]):
    """Prices that count how often they are read."""

    def __init__(self, prices: dict[int, int]) -> None:
        self.prices, self.reads = prices, 0

    def __getitem__(self, seq: int) -> int:
        self.reads += 1
        return self.prices[seq]

    def __iter__(self) -> Iterator[int]:
        return iter(self.prices)

    def __len__(self) -> int:
        return len(self.prices)


@pytest.mark.parametrize("target", [None, 0, 1_000, 50_000])
def test_planning_reads_each_price_a_bounded_number_of_times(target: int | None) -> None:
    for turns in (10, 500):
        history = history_of([MadeTurn((2, 1))] * turns)
        prices = CountedPrices({item.seq: 100 + item.seq % 50 for item in history.items})
        plan_compaction(
            history,
            prices,
            present_tokens=10**6,
            window_tokens=10**6,
            target_tokens=target,
            answering_turn=history.turn,
        )
        assert prices.reads <= 16 * len(history.items)


# -- forget ------------------------------------------------------------------------------------------------


def forgotten(history: History, direction: str, entries: int | None, answering: int | None = None) -> list[int]:
    span = plan_forget(history, direction, entries, answering_turn=answering)
    return [] if span is None else [item.seq for item in history.items if span[0] <= item.seq <= span[1]]


@pytest.mark.parametrize(
    ("direction", "entries", "gone"),
    [
        ("oldest", None, [0, 1, 2]),
        ("newest", None, [2, 3, 4]),
        ("oldest", 1, [0]),
        ("newest", 1, [4]),
        ("oldest", 5, [0, 1, 2, 3, 4]),
        ("newest", 99, [0, 1, 2, 3, 4]),
        ("oldest", 0, []),
    ],
)
def test_forgetting_half_of_five_entries_removes_three(direction: str, entries: int | None, gone: list[int]) -> None:
    history = history_of([MadeTurn(), MadeTurn(), MadeTurn(answered=False)])
    assert forgotten(history, direction, entries) == gone


def test_an_empty_history_has_nothing_to_forget() -> None:
    assert plan_forget(History(), "oldest", None) is None
    assert plan_forget(History(), "newest", 3) is None


@pytest.mark.parametrize(("direction", "gone"), [("oldest", [0]), ("newest", [1, 2, 3])])
def test_a_call_leaves_with_all_its_results(direction: str, gone: list[int]) -> None:
    history = history_of([MadeTurn((2,), answered=False)])
    assert forgotten(history, direction, 1) == gone


def test_a_late_result_leaves_with_its_call() -> None:
    history = History()
    history.append("assistant", "", id="a", at="t", tool_calls=(ToolCall("c", "read", "{}"),))
    history.append("user", "while it runs", id="u", at="t")
    history.append("tool", "late", id="r", at="t", tool_call_id="c")
    history.append("user", "next", id="v", at="t")
    assert forgotten(history, "oldest", 1) == [0, 1, 2]
    assert forgotten(history, "newest", 2) == [0, 1, 2, 3]


def test_a_repeated_call_id_binds_to_the_call_before() -> None:
    history = History()
    for number in range(2):
        history.append("assistant", "", id=f"a{number}", at="t", tool_calls=(ToolCall("call_0", "read", "{}"),))
        history.append("tool", "text", id=f"r{number}", at="t", tool_call_id="call_0")
    assert forgotten(history, "oldest", 1) == [0, 1]


@given(TURNS, st.sampled_from(["oldest", "newest"]), st.none() | st.integers(-1, 12), st.booleans())
def test_forgetting_removes_enough_and_never_half_a_pair(
    turns: list[MadeTurn], direction: str, entries: int | None, answers: bool
) -> None:
    history = history_of(turns)
    answering = history.turn if answers else None
    gone = forgotten(history, direction, entries, answering)
    free = [item.seq for item in history.items if item.turn != answering]
    wanted = -(-len(history.items) // 2) if entries is None else max(0, entries)
    assert len(gone) >= min(wanted, len(free))
    assert set(gone) <= set(free)
    if gone:
        assert gone == (free[: len(gone)] if direction == "oldest" else free[-len(gone) :])
        assert not splits_a_pair(history, gone[0], gone[-1])
        smaller = gone[:-1] if direction == "oldest" else gone[1:]
        assert len(smaller) < wanted or splits_a_pair(history, smaller[0], smaller[-1])


@pytest.mark.parametrize("method", ["summarise", "drop_oldest"])
def test_only_a_staged_compaction_clears_tool_outputs_first(method: Any) -> None:
    turns = [MadeTurn(steps=(1,))] * 6
    history = history_of(turns)
    prices = flat(history, 400)
    target = PREFIX + 400 * len(history.items) - 1000
    staged = planned(history, prices, target)
    other = plan_compaction(
        history,
        prices,
        present_tokens=PREFIX + sum(prices.values()),
        window_tokens=WINDOW,
        target_tokens=target,
        method=method,
    )
    assert isinstance(staged, CompactionPlan)
    assert isinstance(other, CompactionPlan)
    assert staged.stub_seqs
    assert not other.stub_seqs
    assert other.evict is not None
    assert bool(other.summary_budget_tokens) == (method == "summarise")
    assert size_after(history, prices, other) <= target


def test_dropping_never_removes_the_newest_turn() -> None:
    history = history_of([MadeTurn()] * 3)
    prices = flat(history, 900)
    present = PREFIX + sum(prices.values())
    found = plan_compaction(
        history, prices, present_tokens=present, window_tokens=WINDOW, target_tokens=1, method="drop_oldest"
    )
    assert isinstance(found, CompactionPlan)
    newest = max(item.turn for item in history.items)
    assert left(history, found) == [item.seq for item in history.items if item.turn == newest]
    alone = history_of([MadeTurn()])
    nothing = plan_compaction(
        alone, flat(alone, 900), present_tokens=2000, window_tokens=WINDOW, target_tokens=1, method="drop_oldest"
    )
    assert nothing == NothingToDo("no_history")
