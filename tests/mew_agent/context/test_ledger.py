"""The ledger: which prices are exact, which are projected, and that no exact price is wrong."""

import itertools
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mew_agent.context.facts import Cleared
from mew_agent.context.intervals import apportion
from mew_agent.context.item_sizes import ItemSize
from mew_agent.context.ledger import Ledger, Price
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import Calibration
from tests.support.ledgers import append, cut, describe, record, replace_items, set_summary, taught
from tests.support.made_up_provider import Books, Style, Template

STYLES: tuple[Style, ...] = ("openai", "xai", "gemini", "silent", "cache_excluded")

TOKENS = st.integers(0, 900)
UNITS = st.floats(0, 900)
ROLES = st.sampled_from(["user", "tool"])
CALLS = st.lists(
    st.tuples(st.lists(st.tuples(ROLES, UNITS, TOKENS), min_size=1, max_size=3), st.tuples(UNITS, TOKENS)),
    min_size=2,
    max_size=6,
)
TEMPLATES = st.builds(Template, overhead=st.integers(0, 9), opening=st.integers(0, 9), prefix=st.integers(0, 2000))


def talked(books: Books, calls: list[Any], **reply: int) -> Books:
    for items, (units, tokens) in calls:
        for role, item_units, item_tokens in items:
            books.add_entry(role, item_units, item_tokens)
        books.call(units, tokens, **reply)
    return books


def fitting(k: float, units: float) -> tuple[float, int]:
    return units, round(k * units)


def bound_cuts(books: Books) -> list[tuple[int, int]]:
    """All cuts that begin and end at call bounds after the first call."""
    return [(begin + 1, end) for begin, end in itertools.combinations(books.bounds, 2)]


# -- whole intervals ---------------------------------------------------------------------------------------


@given(TEMPLATES, CALLS, st.sampled_from(STYLES), st.integers(0, 300))
def test_a_cut_at_call_boundaries_has_an_exact_price(
    template: Template, calls: list[Any], style: Style, hidden: int
) -> None:
    books = talked(Books(template, style), calls, hidden=hidden if style != "cache_excluded" else 0)
    for first, last in bound_cuts(books):
        assert books.ledger.price(first, last).tokens == books.true_price(first, last)


@given(
    st.integers(0, 8),
    st.integers(0, 8),
    st.floats(0.5, 2.0),
    st.lists(st.lists(st.tuples(ROLES, st.floats(1, 600)), min_size=1, max_size=3), min_size=2, max_size=6),
    st.sampled_from(STYLES),
)
def test_explained_totals_are_labelled_exact(
    overhead: int, opening: int, k: float, calls: list[list[tuple[str, float]]], style: Style
) -> None:
    prefix_units, prefix = fitting(k, 2000.0)
    books = Books(Template(overhead, opening, prefix), style, prefix_units=prefix_units)
    for items in calls:
        for role, units in items:
            books.add_entry(role, *fitting(k, units))
        books.call(*fitting(k, 30.0))
    for first, last in bound_cuts(books):
        price = books.ledger.price(first, last)
        assert price == Price(books.true_price(first, last), "exact")


@given(TEMPLATES, CALLS, st.data())
def test_the_price_of_a_partial_interval_is_never_labelled_exact(
    template: Template, calls: list[Any], data: st.DataObject
) -> None:
    books = talked(Books(template), calls)
    seqs = [entry.seq for entry in books.entries]
    first, last = sorted((data.draw(st.sampled_from(seqs)), data.draw(st.sampled_from(seqs))))
    assume((first, last) not in bound_cuts(books))
    assert books.ledger.price(first, last).basis == "projected"


def test_nothing_at_all_has_no_exact_price() -> None:
    assert talked(Books(), [([("user", 9.0, 9)], (9.0, 9))] * 2).ledger.price(50, 60) == Price(0, "projected")


# -- the parts sum to the report ---------------------------------------------------------------------------


@given(
    TEMPLATES,
    CALLS,
    st.data(),
    st.sampled_from([{}, {"strips_thinking": True}, {"shortens_old_calls": True}, {"window": 1500}]),
)
def test_parts_sum_to_the_reported_prompt_and_items_to_their_parts(
    template: Template, calls: list[Any], data: st.DataObject, switch: dict[str, Any]
) -> None:
    books = Books(template)
    books.change_template(**switch)
    for number, (items, (units, tokens)) in enumerate(calls):
        for role, item_units, item_tokens in items:
            books.add_entry(role, item_units, item_tokens)
        if data.draw(st.booleans(), label="another model"):
            books.served_model = f"model {number}"
        if data.draw(st.booleans(), label="other tools"):
            books.fingerprint = f"tools {number}"
            describe(books.ledger, data.draw(UNITS), data.draw(UNITS))
        reported = books.prompt()
        books.call(units, tokens, thinking=data.draw(st.integers(0, 200)), call_tokens=data.draw(st.integers(0, 200)))
        assert books.ledger.prompt_tokens == reported
        assert books.parts_sum() == reported
        if data.draw(st.booleans(), label="cut"):
            first, last = sorted((data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))))
            books.cut(first, last)
            assert books.ledger.prompt_tokens == books.parts_sum()
        parts = books.ledger.parts
        assert min(parts.prefix, parts.summary, parts.pins, parts.messages, parts.tool_results, parts.unsent) >= 0
        prices = books.ledger.item_prices()
        assert set(prices) == {entry.seq for entry in books.entries}
        assert sum(prices.values()) == parts.messages + parts.tool_results + parts.unsent
        assert books.ledger.next_prompt_tokens == books.parts_sum() + parts.unsent


def test_a_prompt_smaller_than_its_exact_items_makes_none_exact() -> None:
    books = Books(Template(prefix=0), prefix_units=0)
    talked(books, [([("user", 60.0, 60)], (20.0, 20))] * 5)
    books.cut(0, 0)
    books.call()
    books.change_template(overhead=0, opening=0, scale=(1, 4))
    books.call()
    assert books.parts_sum() == books.ledger.prompt_tokens == books.template.prompt(books.entries[:-1])
    assert all(books.ledger.price(first, last).basis == "projected" for first, last in bound_cuts(books))


def test_a_reported_prompt_of_zero_leaves_books_that_still_sum() -> None:
    ledger = Ledger()
    describe(ledger, 10.0)
    append(ledger, ItemSize(0, 5.0))
    for prompt in (0, 90, 0, 40):
        record(ledger, Usage(prompt, 1, prompt + 1), served_model="m", fingerprint="f", last_seq=0, backend="b")
        assert sum((ledger.parts.prefix, ledger.parts.messages)) == ledger.prompt_tokens == prompt


# -- never exact and wrong -----------------------------------------------------------------------------------

SCENES: dict[str, dict[str, Any]] = {
    "thinking is stripped when the next question comes": {"strips_thinking": True},
    "tool calls are shortened when they get old": {"shortens_old_calls": True},
    "both": {"strips_thinking": True, "shortens_old_calls": True},
}


@pytest.mark.parametrize("switch", SCENES.values(), ids=SCENES.keys())
@given(data=st.data(), calls=CALLS)
def test_no_exact_price_is_wrong_under_templates_that_rewrite_replies(
    switch: dict[str, Any], data: st.DataObject, calls: list[Any]
) -> None:
    books = Books()
    books.change_template(**switch)
    for items, (units, tokens) in calls:
        for role, item_units, item_tokens in items:
            books.add_entry(role, item_units, item_tokens)
        books.call(
            units,
            tokens,
            thinking=data.draw(st.sampled_from([0, 3, 40, 400])) if switch.get("strips_thinking") else 0,
            call_tokens=data.draw(st.sampled_from([0, 2, 30, 300])) if switch.get("shortens_old_calls") else 0,
        )
        assert_nothing_is_exact_and_wrong(books)


@given(data=st.data(), calls=CALLS)
def test_nothing_is_exact_and_wrong_when_models_and_tools_change(data: st.DataObject, calls: list[Any]) -> None:
    books = Books()
    scales = {"a": (1, 1), "b": (13, 10), "c": (3, 4)}
    for number, (items, (units, tokens)) in enumerate(calls):
        for role, item_units, item_tokens in items:
            books.add_entry(role, item_units, item_tokens)
        books.served_model = data.draw(st.sampled_from(sorted(scales)))
        books.change_template(scale=scales[books.served_model])
        if data.draw(st.booleans()):
            books.fingerprint = f"tools {number}"
            books.change_template(prefix=data.draw(st.integers(0, 900)))
        books.call(units, tokens)
        if books.served_model == "a":  # integer division makes the other two not quite additive
            assert_nothing_is_exact_and_wrong(books)


@given(
    st.lists(st.lists(st.integers(100, 140), min_size=1, max_size=2), min_size=3, max_size=10),
    st.integers(700, 1400),
)
def test_no_exact_price_is_wrong_if_the_server_drops_messages(calls: list[list[int]], window: int) -> None:
    books = Books(Template(window=window))
    for items in calls:
        for tokens in items:
            books.add_entry("user", float(tokens), tokens)
        books.call(110.0, 110)
        # What a prompt not yet sent will lose cannot be known; what the last one lost must be.
        assert_nothing_is_exact_and_wrong(books, up_to_seq=books.bounds[-1])


@given(data=st.data(), calls=CALLS)
def test_nothing_is_exact_and_wrong_after_cuts(data: st.DataObject, calls: list[Any]) -> None:
    books = Books()
    for items, (units, tokens) in calls:
        for role, item_units, item_tokens in items:
            books.add_entry(role, item_units, item_tokens)
        books.call(units, tokens)
        for _ in range(data.draw(st.integers(0, 2))):
            first, last = sorted((data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))))
            truth = books.true_price(first, last)
            price = books.cut(first, last)
            assert price.basis == "projected" or price.tokens == truth
        assert_nothing_is_exact_and_wrong(books)


def assert_nothing_is_exact_and_wrong(books: Books, up_to_seq: int | None = None) -> None:
    seqs = [entry.seq for entry in books.entries]
    for first, last in itertools.combinations_with_replacement(seqs, 2):
        price = books.ledger.price(first, last)
        if price.basis == "exact":
            assert price.tokens == books.true_price(first, last, up_to_seq=up_to_seq), (first, last)


def test_thinking_that_comes_or_goes_elsewhere_makes_no_later_interval_exact() -> None:
    books = Books(Template(strips_thinking=True))
    books.add_entry("user", 20.0, 20)
    books.call(thinking=30)
    books.add_entry("user", 20.0, 20)
    books.call()  # this interval's growth lacks the 30 tokens that the template stripped from the first reply
    books.add_entry("user", 20.0, 20)
    books.call()
    first, last = books.bounds[1] + 1, books.bounds[2]
    assert books.ledger.price(first, last).basis == "projected"
    books.cut(0, 1)
    assert books.ledger.price(first, last).basis == "projected"


@pytest.mark.parametrize("unsteady", [{"thinking": 5}, {"call_tokens": 5}])
def test_an_unsteady_reply_makes_earlier_prices_projected_too(unsteady: dict[str, int]) -> None:
    books = talked(Books(), [([("user", 50.0, 50)], (20.0, 20))] * 3)
    first, last = books.bounds[0] + 1, books.bounds[1]
    assert books.ledger.price(first, last).basis == "exact"
    books.call(**unsteady)
    assert books.ledger.price(first, last).basis == "projected"


@pytest.mark.parametrize("backends", [(None,), ("one", "two"), ("one", None)])
def test_machines_that_change_or_have_no_name_teach_and_are_not_exact(backends: tuple[str | None, ...]) -> None:
    books = Books()
    for number in range(8):
        books.backend = backends[number % len(backends)]
        talked(books, [([("user", 50.0, 60)], (20.0, 24))])
    first, last = books.bounds[3] + 1, books.bounds[5]
    assert books.ledger.price(first, last) == Price(books.true_price(first, last), "projected")
    assert books.ledger.calibration.project(1000.0) > 1100, "the tokens of each feature are learnt"


@pytest.mark.parametrize("change", ["served_model", "fingerprint"])
def test_another_model_or_fingerprint_ends_exactness_of_earlier_intervals(change: str) -> None:
    books = talked(Books(), [([("user", 50.0, 50)], (20.0, 20))] * 3)
    old = books.bounds[0] + 1, books.bounds[1]
    amount = books.ledger.price(*old).tokens
    setattr(books, change, "another")
    talked(books, [([("user", 50.0, 50)], (20.0, 20))] * 2)
    assert books.ledger.price(*old) == Price(amount, "projected")
    across = books.bounds[2] + 1, books.bounds[3]
    assert books.ledger.price(*across).basis == "projected"
    new = books.bounds[3] + 1, books.bounds[4]
    assert books.ledger.price(*new) == Price(books.true_price(*new), "exact")


@pytest.mark.parametrize(
    ("units", "more", "basis"),
    [
        pytest.param(10.0, 16, "exact", id="16 tokens off"),
        pytest.param(10.0, 17, "projected", id="17 tokens off"),
        pytest.param(200.0, -62, "projected", id="more than a quarter short"),
        pytest.param(200.0, 40, "exact", id="less than a quarter of what was projected"),
        pytest.param(200.0, 62, "projected", id="more than a quarter of it"),
        pytest.param(2000.0, 64, "exact", id="64 tokens off"),
        pytest.param(2000.0, 99, "projected", id="a rebase"),
    ],
)
def test_an_interval_that_its_items_do_not_explain_is_not_exact(units: float, more: int, basis: str) -> None:
    ledger = taught(Calibration(1000.0, 1000.0))
    describe(ledger, 1000.0)
    append(ledger, ItemSize(0, 10.0))
    reported(ledger, 1018)
    append(ledger, ItemSize(1, 10.0))
    reported(ledger, 1032, last_seq=1)
    assert ledger.price(1, 1) == Price(14, "exact")
    append(ledger, ItemSize(2, units))
    grown = ledger.next_prompt_tokens + more - 1032
    reported(ledger, 1032 + grown, last_seq=2)
    assert ledger.price(2, 2) == Price(grown, basis)  # type: ignore[arg-type]
    assert ledger.price(1, 1) == Price(14, basis)  # type: ignore[arg-type]


def test_exact_items_without_room_in_a_report_are_doubted() -> None:
    books = Books(Template(prefix=10), prefix_units=10.0)
    talked(books, [([("user", 60.0, 60)], (20.0, 20))] * 4)
    books.cut(0, 0)
    books.change_template(prefix=0, opening=0, overhead=0)  # small enough to be no rebase
    books.call()
    assert books.ledger.prompt_tokens == books.parts_sum()
    assert all(books.ledger.price(first, last).basis == "projected" for first, last in bound_cuts(books))


def test_intervals_are_exact_again_after_everything_unsteady_has_left() -> None:
    books = Books()
    books.add_entry("user", 20.0, 20)
    books.call(call_tokens=10)
    books.add_entry("tool", 20.0, 20)
    books.call()
    books.cut(0, 2)
    for _ in range(3):
        books.add_entry("user", 20.0, 20)
        books.call()
    first, last = books.bounds[-2] + 1, books.bounds[-1]
    assert books.ledger.price(first, last) == Price(books.true_price(first, last), "exact")


# -- drift ---------------------------------------------------------------------------------------------------


def reported(ledger: Ledger, prompt: int, *, last_seq: int = 0, model: str = "m", fingerprint: str = "f") -> Any:
    usage = Usage(prompt, 10, prompt + 10)
    return record(ledger, usage, served_model=model, fingerprint=fingerprint, last_seq=last_seq, backend="b")


def opened(prompt: int) -> Ledger:
    """Books with one reported prompt of so many tokens and nothing unsent."""
    ledger = Ledger()
    describe(ledger, 100.0)
    append(ledger, ItemSize(0, 50.0))
    assert reported(ledger, prompt) is None
    return ledger


@pytest.mark.parametrize(
    ("prompt", "then", "drift", "rebased"),
    [
        (1000, 1064, -64, False),
        (1000, 1065, -65, True),
        (1000, 936, 64, False),
        (1000, 935, 65, True),
        (10_000, 10_204, -204, False),
        (10_000, 10_205, -205, True),
    ],
)
def test_drift_beyond_64_tokens_and_2_percent_rebases(prompt: int, then: int, drift: int, rebased: bool) -> None:
    ledger = opened(prompt)
    found = reported(ledger, then)
    assert (found.tokens, found.rebased) == (drift, rebased)
    assert ledger.prompt_tokens == then


def test_the_first_report_has_no_drift() -> None:
    ledger = Ledger()
    append(ledger, ItemSize(0, 50.0))
    assert reported(ledger, 500) is None


def test_after_a_rebase_no_earlier_measurement_is_exact() -> None:
    books = talked(Books(), [([("user", 50.0, 50)], (20.0, 20))] * 4)
    first, last = books.bounds[0] + 1, books.bounds[1]
    assert books.ledger.price(first, last).basis == "exact"
    amount = books.ledger.price(first, last).tokens
    books.change_template(prefix=books.template.prefix + 200)
    books.add_entry("user", 50.0, 50)
    drift = books.call()
    assert drift is not None
    assert drift.rebased
    assert books.ledger.price(first, last) == Price(amount, "projected")


@pytest.mark.parametrize(
    ("then", "changes", "truncated"),
    [
        (799, {}, True),
        (800, {}, False),
        (1200, {}, False),
        (500, {"fingerprint": "other tools"}, False),
        (500, {"model": "another"}, False),
    ],
)
def test_an_unexplained_fall_of_over_a_fifth_is_truncation(then: int, changes: dict[str, Any], truncated: bool) -> None:
    assert reported(opened(1000), then, **changes).truncated_by_server is truncated


def test_a_fall_after_a_cut_is_not_truncation() -> None:
    ledger = opened(1000)
    cut(ledger, 5, 9)
    assert not reported(ledger, 500).truncated_by_server


def test_a_fall_with_thinking_in_the_history_is_not_truncation() -> None:
    ledger = opened(1000)
    append(ledger, ItemSize(1, 10.0, thinking=True))
    assert not reported(ledger, 500, last_seq=1).truncated_by_server
    cut(ledger, 1, 1)
    reported(ledger, 490)
    assert reported(ledger, 300).truncated_by_server


# -- what is projected ---------------------------------------------------------------------------------------


def test_a_summary_counts_in_the_next_prompt_until_it_is_removed() -> None:
    ledger = opened(1000)
    assert set_summary(ledger, ItemSize(-1, 30.0, known_tokens=50)) == 54
    assert ledger.next_prompt_tokens == 1054
    assert set_summary(ledger, None) == 0
    assert ledger.next_prompt_tokens == 1000


def test_new_tools_count_before_a_call_sends_them() -> None:
    books = Books(prefix_units=300.0)
    books.add_entry("user", 30.0, 30)
    books.call()
    before, held = books.ledger.next_prompt_tokens, books.ledger.prompt_tokens
    describe(books.ledger, 800.0)
    assert books.ledger.next_prompt_tokens - before == pytest.approx(500, abs=60)
    assert books.ledger.prompt_tokens == held == books.parts_sum()
    books.fingerprint = "more tools"
    books.change_template(prefix=800)
    books.add_entry("user", 30.0, 30)
    drift = books.call()
    assert drift is not None
    assert abs(drift.tokens) < 60
    assert books.ledger.parts.prefix == pytest.approx(800, abs=60)


def test_a_prefix_that_went_away_never_makes_a_projection_negative() -> None:
    ledger = opened(5)
    describe(ledger, 0.0)
    assert ledger.next_prompt_tokens >= 0


def test_a_new_pin_counts_in_the_next_prompt() -> None:
    ledger = opened(1000)
    describe(ledger, 100.0, 40.0)
    assert ledger.next_prompt_tokens > 1000


def test_stubs_free_the_difference_and_are_never_exact() -> None:
    books = Books()
    books.add_entry("user", 20.0, 20)
    books.call(call_tokens=10)
    results = [books.add_entry("tool", 400.0, 400) for _ in range(2)]
    books.call()
    before = books.ledger.next_prompt_tokens
    freed = replace_items(books.ledger, [ItemSize(entry.seq, 30.0, tool_result=True) for entry in results])
    assert freed.basis == "projected"
    assert before - books.ledger.next_prompt_tokens == freed.tokens == pytest.approx(740, abs=60)
    assert books.parts_sum() == books.ledger.prompt_tokens
    assert books.ledger.price(results[0].seq, results[1].seq).basis == "projected"


def test_a_stub_longer_than_its_result_frees_nothing() -> None:
    books = Books()
    books.add_entry("user", 20.0, 20)
    books.call()
    result = books.add_entry("tool", 5.0, 5)
    books.call()
    assert replace_items(books.ledger, [ItemSize(result.seq, 300.0, tool_result=True)]).tokens == 0


def test_a_stub_of_an_unsent_result_shrinks_only_the_tail() -> None:
    books = Books()
    books.add_entry("user", 20.0, 20)
    books.call()
    result = books.add_entry("tool", 400.0, 400)
    held = books.ledger.prompt_tokens
    freed = replace_items(books.ledger, [ItemSize(result.seq, 30.0, tool_result=True)])
    assert books.ledger.prompt_tokens == held
    assert freed.tokens > 300
    assert sum(books.ledger.item_prices().values()) == sum(
        (books.ledger.parts.messages, books.ledger.parts.tool_results, books.ledger.parts.unsent)
    )


def test_a_note_for_an_item_that_has_left_changes_nothing() -> None:
    books = talked(Books(), [([("user", 50.0, 50)], (20.0, 20))] * 2)
    books.cut(0, 0)
    before = books.ledger.next_prompt_tokens
    assert replace_items(books.ledger, [ItemSize(0, 3.0, tool_result=True)]) == Price(0, "projected")
    assert books.ledger.next_prompt_tokens == before


def test_the_tail_holds_the_items_after_the_last_one_sent() -> None:
    ledger = opened(1000)
    append(ledger, ItemSize(1, 20.0, known_tokens=25))
    append(ledger, ItemSize(2, 20.0))
    assert ledger.projection(1) == 29
    assert ledger.projection(7) == 0
    assert ledger.parts.unsent == 29 + ledger.projection(2)
    reported(ledger, 1040, last_seq=1)
    assert ledger.parts.unsent == ledger.projection(2) > 0


def test_a_clear_keeps_only_the_calibration() -> None:
    books = talked(Books(Template(scale=(2, 1))), [([("user", 200.0, 200)], (50.0, 50))] * 3)
    learnt = books.ledger.calibration
    books.ledger.apply(Cleared())
    assert books.ledger.calibration == learnt
    assert books.ledger.prompt_tokens is None
    assert books.ledger.next_prompt_tokens == books.ledger.parts.prefix > 0
    assert books.ledger.parts.unsent == 0
    assert books.ledger.item_prices() == {}


# -- what is learnt ------------------------------------------------------------------------------------------


def test_each_model_has_its_own_factor_and_finds_it_again() -> None:
    books = Books(Template(scale=(1, 1)), prefix_units=300)
    for model, scale in [("a", (1, 1)), ("b", (2, 1)), ("a", (1, 1)), ("b", (2, 1))]:
        books.served_model = model
        books.change_template(scale=scale, prefix=300 * scale[0])
        for _ in range(4):
            books.add_entry("user", 200.0, 200)
            books.call()
    assert books.ledger.evidence.learnt["a"].k == pytest.approx(1.0, abs=0.15)
    assert books.ledger.evidence.learnt["b"].k == pytest.approx(2.0, abs=0.3)
    books.served_model = "a"
    books.change_template(scale=(1, 1), prefix=300)
    books.add_entry("user", 200.0, 200)
    books.call()
    assert books.ledger.calibration.k == pytest.approx(1.0, abs=0.15)


def test_the_first_report_teaches_the_factor_of_the_model() -> None:
    books = Books(Template(scale=(2, 1), prefix=1200), prefix_units=600)
    books.add_entry("user", 400.0, 400)
    books.call()
    books.add_entry("user", 500.0, 500)
    drift = books.call()
    assert drift is not None
    assert abs(drift.tokens) <= 40


def test_two_unreported_calls_later_the_whole_interval_is_still_exact() -> None:
    books = Books()
    books.add_entry("user", 50.0, 50)
    books.call()
    for _ in range(2):  # a call without usage records nothing
        books.add_entry("user", 50.0, 50)
        books.add_entry("assistant", 20.0, 20, known=None)
    books.add_entry("user", 50.0, 50)
    books.call()
    first, last = books.bounds[0] + 1, books.bounds[1]
    assert books.ledger.price(first, last) == Price(books.true_price(first, last), "exact")


def test_a_given_calibration_applies_before_the_first_report() -> None:
    ledger = taught(Calibration(200.0, 100.0))
    append(ledger, ItemSize(0, 100.0))
    assert ledger.next_prompt_tokens == 204


# -- sizes ---------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**4), max_size=20))
def test_apportioned_shares_sum_to_the_whole_and_follow_the_weights(total: int, weights: list[int]) -> None:
    shares = apportion(total, weights)
    assert len(shares) == len(weights)
    if weights:
        assert sum(shares) == total
        assert min(shares) >= 0
    whole = sum(weights)
    if whole:
        assert all(abs(share - total * weight / whole) < 1 for share, weight in zip(shares, weights, strict=True))


@pytest.mark.parametrize("unsteady", [False, True], ids=["plain", "tool calls"])
@pytest.mark.parametrize("case", ["a new item", "nothing new", "other tools", "another model", "a fall", "a doubt"])
def test_recording_a_call_reads_no_older_items(case: str, unsteady: bool) -> None:
    """A decision must not cost more in a long conversation: count what is read of its items."""

    class Watched(ItemSize):
        reads = 0

        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("__"):
                Watched.reads += 1
            return super().__getattribute__(name)

    def reads_of_the_last_call(length: int) -> int:
        ledger = Ledger()
        for seq in range(length):
            append(ledger, Watched(seq, 10.0, tool_calls=unsteady))
            reported(ledger, 14 * (seq + 1), last_seq=seq)
        about = {"model": "other" if case == "another model" else "m", "fingerprint": "g" if "tools" in case else "f"}
        last, grown = length - 1, 0
        if case in ("a new item", "a doubt", "other tools", "another model"):
            append(ledger, Watched(length, 10.0))
            last, grown = length, 14
        grown += {"a fall": -20, "a doubt": 5000, "other tools": 300}.get(case, 0)
        Watched.reads = 0
        reported(ledger, 14 * length + grown, last_seq=last, **about)
        assert ledger.next_prompt_tokens == ledger.prompt_tokens == sum(ledger.parts[:5])
        assert ledger.next_prompt_basis == "projected"
        return Watched.reads

    assert reads_of_the_last_call(20) == reads_of_the_last_call(400)


def test_pending_changes_are_applied_when_intervals_are_read() -> None:
    ledger = Ledger()
    for seq in range(50):
        append(ledger, ItemSize(seq, 10.0, tool_result=seq % 3 == 0, tool_calls=seq % 5 == 0))
        reported(ledger, 300 + 14 * (seq + 1), last_seq=seq)
    for prompt, model in ((900, "m"), (1400, "other"), (700, "m"), (2000, "m")):
        reported(ledger, prompt, last_seq=49, model=model)
        prices, parts = ledger.item_prices(), ledger.parts
        assert sum(prices.values()) == parts.messages + parts.tool_results
        assert sum(parts[:5]) == prompt
        assert ledger.price(0, 49).tokens == sum(prices.values())
        inner = list(prices.values())[1:]
        assert max(inner) - min(inner) <= 2  # equal items stay equal
