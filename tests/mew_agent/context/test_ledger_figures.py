"""The price of a cut at call boundaries is right to the token under additive templates."""

import itertools
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mew_agent.context.item_sizes import ItemSize
from mew_agent.context.ledger import Ledger, Price
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import features
from tests.support.ledgers import append, cut, describe, record, set_summary
from tests.support.made_up_provider import Books, Style, Template

STYLES: tuple[Style, ...] = ("openai", "xai", "gemini", "silent", "cache_excluded")

ITEMS = st.lists(st.tuples(st.sampled_from(["user", "tool"]), st.floats(0, 900), st.integers(0, 900)), max_size=3)
REPLIES = st.tuples(st.floats(0, 400), st.integers(0, 400), st.sampled_from([0, 0, 3, 60, 500]))
CALLS = st.lists(st.tuples(ITEMS, REPLIES), min_size=2, max_size=8)
TEMPLATES = st.builds(Template, overhead=st.integers(0, 9), opening=st.integers(0, 9), prefix=st.integers(1, 2000))


class Known:
    """Books, and which intervals both ends of which were reported on the same terms and still hold."""

    def __init__(self, template: Template, style: Style) -> None:
        self.books = Books(template, style)
        self.intervals: list[tuple[int, int]] = []
        self.terms: tuple[str, str] | None = None

    def call(self, units: float, tokens: int, call_tokens: int, *, hidden: int = 0) -> None:
        books = self.books
        terms = books.served_model, books.fingerprint
        before = books.bounds[-1] if books.bounds else None
        books.call(units, tokens, call_tokens=call_tokens, hidden=hidden)
        if self.terms is not None and terms[0] != self.terms[0]:
            self.intervals.clear()  # another tokenizer: earlier sizes of items no longer count
        elif terms == self.terms and before is not None and books.bounds[-1] > before:
            self.intervals.append((before + 1, books.bounds[-1]))
        self.terms = terms

    def cut(self, first: int, last: int) -> None:
        self.books.cut(first, last)
        self.intervals = [span for span in self.intervals if not first <= span[0] <= last]

    def runs(self) -> list[tuple[int, int]]:
        """Every stretch of neighbouring known intervals."""
        found = []
        for begin, end in itertools.combinations_with_replacement(range(len(self.intervals)), 2):
            inside = self.intervals[begin : end + 1]
            first, last = inside[0][0], inside[-1][1]
            held = [entry.seq for entry in self.books.entries if first <= entry.seq <= last]
            if all(any(a <= seq <= b for a, b in inside) for seq in held):
                found.append((first, last))
        return found

    def assert_right(self) -> None:
        for first, last in self.runs():
            price = self.books.ledger.price(first, last)
            assert price.tokens == self.books.true_price(first, last), (first, last)
        assert self.books.parts_sum() == self.books.ledger.prompt_tokens


@given(TEMPLATES, CALLS, st.sampled_from(STYLES), st.integers(0, 300))
def test_tool_calls_in_the_history_move_no_figure(
    template: Template, calls: list[Any], style: Style, hidden: int
) -> None:
    known = Known(template, style)
    for items, (units, tokens, call_tokens) in calls:
        for role, item_units, item_tokens in items:
            known.books.add_entry(role, item_units, item_tokens)
        known.call(units, tokens, call_tokens, hidden=0 if style == "cache_excluded" else hidden)
        known.assert_right()
    assert len(known.intervals) == len(calls) - 1


@given(TEMPLATES, CALLS, st.sampled_from(STYLES), st.data())
def test_whole_cuts_other_terms_and_repeated_calls_keep_exact_prices_right(
    template: Template, calls: list[Any], style: Style, data: st.DataObject
) -> None:
    known = Known(template, style)
    books = known.books
    for number, (items, (units, tokens, call_tokens)) in enumerate(calls):
        for role, item_units, item_tokens in items:
            books.add_entry(role, item_units, item_tokens)
        happens = data.draw(st.sampled_from(["", "", "cut", "tools", "model", "again"]), label="happens")
        if happens == "cut" and known.runs():
            known.cut(*data.draw(st.sampled_from(known.runs()), label="cut"))
        elif happens == "tools":
            prefix = data.draw(st.integers(1, 2000), label="prefix")
            books.fingerprint = f"tools {number}"
            books.change_template(prefix=prefix)
            describe(books.ledger, float(prefix) * data.draw(st.sampled_from([0.8, 1.0, 1.2])))
        elif happens == "model":
            books.served_model = "b" if books.served_model == "model" else "model"
            books.change_template(scale=(2, 1) if books.served_model == "b" else (1, 1))
        elif happens == "again" and books.bounds:
            usage = Usage(books.ledger.prompt_tokens or 0, 5, (books.ledger.prompt_tokens or 0) + 5)
            record(
                books.ledger,
                usage,
                served_model=known.terms[0] if known.terms else "",
                fingerprint=known.terms[1] if known.terms else "",
                last_seq=books.bounds[-1],
                backend=books.backend,
            )
        known.call(units, tokens, call_tokens)
        known.assert_right()


def test_nothing_is_exact_after_the_server_dropped_messages() -> None:
    books = Books(Template(window=400))
    books.add_entry("user", 0.0, 90)
    for _ in range(3):
        books.call(0.0, 0)
    assert books.ledger.price(2, 2).basis != "exact"
    books.cut(1, 1)  # from here on, the dropped message would fit again
    assert books.ledger.price(2, 2).basis != "exact"


def test_figures_are_exact_again_without_the_messages_the_server_dropped() -> None:
    ledger = Ledger()
    describe(ledger, 200.0)
    for seq, prompt in enumerate((300, 400, 350)):  # the server dropped 150 tokens
        append(ledger, ItemSize(seq, 100.0))
        reported(ledger, prompt, seq)
    append(ledger, ItemSize(3, 100.0))
    reported(ledger, 450, 3)
    assert ledger.price(3, 3).basis == "projected"
    cut(ledger, 0, 2)
    for seq, prompt in ((4, 400), (5, 500)):
        append(ledger, ItemSize(seq, 100.0))
        reported(ledger, prompt, seq)
    assert ledger.price(5, 5) == Price(100, "exact")


@given(CALLS, st.data())
def test_intervals_after_a_whole_cut_are_measured_or_exactly_right(calls: list[Any], data: st.DataObject) -> None:
    """The server drops messages in silence, so that after a cut more of the rest may fit than before.

    A server that drops some while its prompt still grows cannot be told from one that keeps everything.
    """
    books, before = Books(Template(window=data.draw(st.integers(400, 3000)))), 0
    for items, (units, tokens, _) in calls:
        for role, item_units, item_tokens in items:
            books.add_entry(role, item_units, item_tokens)
        prompt, whole = books.prompt(), replace(books.template, window=None).prompt(books.entries)
        if before <= prompt < whole:
            return
        before = prompt
        books.call(units, tokens)
        if len(books.bounds) > 2 and data.draw(st.booleans()):
            first, last = sorted(
                data.draw(st.lists(st.sampled_from(books.bounds), min_size=2, max_size=2, unique=True))
            )
            books.cut(first + 1, last)
        for first, last in itertools.combinations(books.bounds, 2):
            price = books.ledger.price(first + 1, last)
            if price.basis == "exact":
                assert abs(price.tokens - books.true_price(first + 1, last, up_to_seq=books.bounds[-1])) <= 64


def test_a_rescale_changes_the_least_known_parts_first() -> None:
    ledger = Ledger()
    describe(ledger, 300.0)
    for seq in range(4):
        append(ledger, ItemSize(seq, 100.0, tool_calls=seq == 0))
        reported(ledger, 400 + 104 * seq, seq)
    set_summary(ledger, ItemSize(-1, 50.0))
    reported(ledger, 400 + 104 * 3 + 80, 3)
    assert [ledger.price(seq, seq).tokens for seq in (1, 2, 3)] == [104, 104, 104]
    assert ledger.parts.summary > 54


def test_a_prompt_too_small_for_measured_intervals_shrinks_them() -> None:
    ledger = Ledger()
    describe(ledger, 300.0)
    for seq in range(4):
        append(ledger, ItemSize(seq, 100.0, tool_calls=seq == 0))
        reported(ledger, 400 + 104 * seq, seq)
    reported(ledger, 250, 3, fingerprint="other tools")
    assert sum(ledger.item_prices().values()) + ledger.parts.prefix == 250
    assert ledger.price(3, 3).tokens < 104


def reported(ledger: Ledger, prompt: int, last_seq: int, *, fingerprint: str = "f") -> None:
    record(
        ledger,
        Usage(prompt, 10, prompt + 10),
        served_model="m",
        fingerprint=fingerprint,
        last_seq=last_seq,
        backend="b",
    )


# -- a residual goes where the doubt is ------------------------------------------------------------------------


TEXT = features("The gateway keeps the order of all envelopes that one member sends to another. " * 8)
TEXT_TOKENS = round(TEXT)


def test_the_cost_of_tools_is_not_the_first_messages() -> None:
    books = Books(Template(prefix=900), prefix_units=TEXT + TEXT + TEXT)
    talk(books, turns=6)
    first = books.entries[0]
    off = books.ledger.price(first.seq, first.seq).tokens - books.true_price(first.seq, first.seq)
    assert abs(off) <= 6
    assert abs(books.ledger.parts.prefix - 903) <= 6


def test_a_cut_changes_neither_an_unchanged_prefix_nor_a_reported_summary() -> None:
    books = Books(Template(prefix=900), prefix_units=TEXT + TEXT + TEXT)
    talk(books, turns=6)
    books.cut(0, books.bounds[3])
    summary = ItemSize(-1, 90.0, 200)
    books.summary = 200
    set_summary(books.ledger, summary)
    before = books.ledger.parts
    books.add_entry("user", TEXT, TEXT_TOKENS)
    books.call()
    after = books.ledger.parts
    assert (after.prefix, after.summary) == (before.prefix, before.summary)
    assert books.ledger.prompt_tokens == books.parts_sum()


def talk(books: Books, *, turns: int) -> None:
    for _ in range(turns):
        books.add_entry("user", TEXT, TEXT_TOKENS)
        books.call(TEXT, TEXT_TOKENS)
