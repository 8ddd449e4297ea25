"""A context measured by its messages. Ids name the rows of the table it was specified by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.context.message_counts import Compression, CountedConversation, Role, occupancy_of
from mew_agent.context.policy import MEW, TACHIKOMA
from mew_agent.context.policy.threshold import Fraction

HALF = Fraction(numerator=1, denominator=2)
ROLES = {"S": "system", "U": "user", "A": "assistant", "T": "tool"}


def conversation(text: str, limit: int) -> CountedConversation:
    """`U300 A400` is a message of a person with 300 tokens, then an answer with 400."""
    made = CountedConversation(TACHIKOMA, limit)
    for word in text.split():
        made.add(int(word[1:]), ROLES[word[0]])  # type: ignore[arg-type]
    return made


def text(made: CountedConversation) -> str:
    return " ".join(f"{(role or '?')[0].upper()}{tokens}" for role, tokens in made.messages)


@pytest.mark.parametrize(
    ("used", "level", "percent", "until_warning", "until_redline", "remaining"),
    [
        pytest.param(99_999, "nominal", 49.9995, 50_001, 80_001, 100_001, id="T1 below"),
        pytest.param(100_000, "elevated", 50.0, 50_000, 80_000, 100_000, id="T1"),
        pytest.param(149_999, "elevated", 74.9995, 1, 30_001, 50_001, id="T2 below"),
        pytest.param(150_000, "warning", 75.0, 0, 30_000, 50_000, id="T2"),
        pytest.param(180_000, "critical", 90.0, 0, 0, 20_000, id="T4"),
        pytest.param(199_999, "critical", 99.9995, 0, 0, 1, id="T5 below"),
        pytest.param(200_000, "redlined", 100.0, 0, 0, 0, id="T5"),
        pytest.param(250_000, "redlined", 125.0, 0, 0, 0, id="T5 above"),
    ],
)
def test_occupancy_tells_the_room_that_is_left(
    used: int, level: str, percent: float, until_warning: int, until_redline: int, remaining: int
) -> None:
    made = CountedConversation(TACHIKOMA, 200_000)
    seen = made.add(used)
    assert (seen.level, seen.percent, seen.remaining_tokens) == (level, percent, remaining)
    assert (made.tokens_until_level("warning"), made.tokens_until_redline()) == (until_warning, until_redline)


@pytest.mark.parametrize(
    ("used", "needs_reset", "concerning"),
    [(0, False, False), (149_999, False, False), (150_000, False, True), (199_999, False, True), (200_000, True, True)],
)
def test_only_the_redline_asks_for_a_reset_and_warning_is_of_concern(
    used: int,
    needs_reset: bool,
    concerning: bool,
) -> None:
    seen = occupancy_of(TACHIKOMA, used, 200_000)
    assert (seen.needs_reset, seen.is_concerning) == (needs_reset, concerning)


def test_the_largest_window_is_told_to_the_token() -> None:
    assert occupancy_of(TACHIKOMA, 14_260_633, 16_777_216).level == "warning"
    assert occupancy_of(TACHIKOMA, 14_260_634, 16_777_216).level == "critical"


@pytest.mark.parametrize(
    ("tokens", "fits"), [pytest.param(50_000, True, id="T13"), pytest.param(50_001, False, id="T13+")]
)
def test_there_is_room_for_what_is_left_and_no_more(tokens: int, fits: bool) -> None:
    assert occupancy_of(TACHIKOMA, 150_000, 200_000).has_room_for(tokens) is fits


@pytest.mark.parametrize(
    ("before", "after", "compression"),
    [
        pytest.param("U900", "U900", Compression(900, 900, 500, 0), id="T9"),
        pytest.param("U300 A200", "U300 A200", Compression(500, 500, 500, 0), id="at the target"),
        pytest.param("U300 A201", "A201", Compression(501, 201, 500, 1), id="one above the target"),
        pytest.param("S100 U300 A400 U50", "S100 U50", Compression(850, 150, 500, 2), id="the system prompt stays"),
        pytest.param("S100 S200 U300 A400", "S100 A400", Compression(1000, 500, 500, 2), id="a second one does not"),
        pytest.param("U400 S300 A300", "S300", Compression(1000, 300, 500, 2), id="one that comes to the front stays"),
        pytest.param("S600 U500", "S600", Compression(1100, 600, 500, 1), id="the target is missed"),
        pytest.param("", "", Compression(0, 0, 500, 0), id="nothing at all"),
    ],
)
def test_the_oldest_messages_go_until_the_target_is_reached(before: str, after: str, compression: Compression) -> None:
    made = conversation(before, 1000)
    assert made.compress_to(HALF) == compression
    assert text(made) == after
    assert made.tokens == compression.tokens_after


def test_a_missed_target_is_told() -> None:
    assert conversation("S600 U500", 1000).compress_to(HALF).missed_by_tokens == 100
    assert conversation("U900", 1000).compress_to(HALF).missed_by_tokens == 400
    assert conversation("U300 A300", 1000).compress_to(HALF).missed_by_tokens == 0


MESSAGES = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.integers(0, 300)), max_size=30
)


@given(MESSAGES, st.integers(1, 20))
def test_compression_is_dropping_one_by_one(messages: list[tuple[Role, int]], tenths: int) -> None:
    """The same as the rule read aloud: the first message, or the second where the first is a system message."""
    made, left = CountedConversation(TACHIKOMA, 1000), list(messages)
    for role, tokens in messages:
        made.add(tokens, role)
    target = 1000 * tenths // 20
    while sum(tokens for _, tokens in left) > target and len(left) > 1:
        left.pop(1 if left[0][0] == "system" else 0)
    done = made.compress_to(Fraction(numerator=tenths, denominator=20))
    assert list(made.messages) == left
    assert done.missed_by_tokens == max(0, sum(tokens for _, tokens in left) - target)


def test_t14_a_clear_forgets_messages_and_keeps_the_plot() -> None:
    made = conversation(" ".join(["U7"] * 20), 100)
    assert made.clear() == 140
    assert (made.tokens, made.messages, len(made.history)) == (0, (), 20)
    assert [seen.used_tokens for seen in made.history] == list(range(7, 141, 7))


@pytest.mark.parametrize("messages", [10, 11, 12], ids="T10 {}".format)
def test_old_messages_of_a_person_are_suggested_when_there_are_more_than_ten(messages: int) -> None:
    made = conversation(" ".join(["U100"] * messages), 10_000)
    found = [(one.key, one.tokens_saved, one.impact) for one in made.suggestions()]
    assert found == ([] if messages == 10 else [("remove_user", (messages - 5) * 100, "low")])


@pytest.mark.parametrize(("tokens", "saved"), [(333, []), (334, [167])])
def test_answers_above_a_third_of_the_window_are_worth_a_summary(tokens: int, saved: list[int]) -> None:
    made = conversation(f"A{tokens}", 1000)
    assert [one.tokens_saved for one in made.suggestions()] == saved


def test_suggestions_come_in_order_and_go_when_messages_go() -> None:
    made = conversation(" ".join(["U10"] * 11 + ["A500"]), 1000)
    assert [one.key for one in made.suggestions()] == ["remove_user", "summarise_assistant"]
    made.compress_to(Fraction(numerator=11, denominator=20))
    assert [one.key for one in made.suggestions()] == ["summarise_assistant"]
    made.clear()
    assert made.suggestions() == ()


def test_a_policy_without_marks_has_none() -> None:
    made = CountedConversation(MEW, 1000)
    made.add(5)
    assert (made.tokens_until_level("near_limit"), made.tokens_until_redline(), made.suggestions()) == (895, None, ())
    assert made.tokens_until_level("critical") is None
