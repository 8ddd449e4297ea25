"""The order of an answer's pieces, and that no text comes twice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.participant.answers.assembly import Answer, Delta


def joined(deltas: list[Delta], part: str = "content") -> str:
    return "".join(delta.text for delta in deltas if delta.part == part)


def told(answer: Answer, *steps: tuple[Any, ...]) -> list[Delta]:
    """Run steps like `("token", "text")` and collect what they make ready."""
    deltas: list[Delta] = []
    for name, *values in steps:
        deltas += getattr(answer, name)(*values)
    return deltas


def live(**options: Any) -> Answer:
    return Answer(may_use_tools=False, **options)


def test_tokens_are_shown_as_they_come_and_the_final_chat_adds_nothing() -> None:
    answer = live()
    assert answer.token("One ") == [Delta("content", "One ")]
    assert answer.token("two.") == [Delta("content", "two.")]
    assert answer.finish("One two.") == []
    assert answer.text == "One two."


def test_a_final_chat_without_a_stream_is_one_piece() -> None:
    assert live().finish("All of it.") == [Delta("content", "All of it.")]


def test_what_the_stream_lost_at_its_end_is_added() -> None:
    deltas = told(live(), ("token", "One "), ("finish", "One two."))
    assert joined(deltas) == "One two."


def test_white_space_that_an_agent_trims_is_no_other_text() -> None:
    assert joined(told(live(), ("token", "\n\nOne."), ("token", "\n"), ("finish", "One."))).strip() == "One."
    assert joined(told(live(), ("token", "\n\nOne "), ("finish", "One two."))).strip() == "One two."


def test_another_final_chat_stands_apart_from_what_was_streamed() -> None:
    deltas = told(live(), ("token", "The tide is"), ("finish", "My model's answer was cut off."))
    assert joined(deltas) == "The tide is\n\nMy model's answer was cut off."


def test_a_call_that_was_made_twice_is_not_told_a_third_time() -> None:
    deltas = told(live(), ("token", "The ti"), ("token", "The tide rises."), ("finish", "The tide rises."))
    assert joined(deltas).count("The tide rises.") == 1


def test_a_call_that_is_made_again_says_so_where_its_first_text_was_shown() -> None:
    steps = [("token", "The ti"), ("begin_again", "stopped there"), ("token", "The tide "), ("token", "rises.")]
    answer = live()
    deltas = told(answer, *steps, ("finish", "The tide rises."))
    assert joined(deltas) == "The ti\n\n> stopped there\n\nThe tide rises."
    assert answer.notices == ["stopped there"]


def test_what_was_held_of_a_call_that_is_made_again_is_thinking() -> None:
    answer = Answer()
    deltas = told(answer, ("token", "The ti"), ("begin_again", "stopped there"), ("token", "Low."), ("finish", "Low."))
    assert (joined(deltas), joined(deltas, "reasoning_content")) == ("Low.", "The ti\n")
    assert answer.notices == []


def test_a_call_that_had_said_nothing_is_made_again_without_a_word() -> None:
    assert told(live(), ("begin_again", "stopped there"), ("finish", "Low.")) == [Delta("content", "Low.")]


def test_text_before_a_tool_call_is_thinking() -> None:
    answer = Answer(hold_characters=50)
    deltas = told(answer, ("token", "Let me look."), ("tool_call", "read", '{"a": 1}'), ("token", "It is"))
    deltas += answer.finish("It is blue.")
    assert joined(deltas) == "It is blue."
    assert joined(deltas, "reasoning_content") == 'Let me look.\n→ read {"a": 1}\n'


def test_text_longer_than_the_hold_is_shown_and_the_answer_stands_apart() -> None:
    answer = Answer(hold_characters=10)
    deltas = told(answer, ("token", "I think I should look."), ("tool_call", "read", "{}"), ("finish", "Blue."))
    assert joined(deltas) == "I think I should look.\n\nBlue."


def test_held_text_is_released_as_soon_as_it_is_too_long_for_a_remark() -> None:
    answer = Answer(hold_characters=10)
    assert answer.token("0123456789") == []
    assert answer.token("X") == [Delta("content", "0123456789X")]
    assert answer.token("Y") == [Delta("content", "Y")]


def test_an_agent_that_says_whether_its_model_has_tools_is_believed() -> None:
    expected = Answer(may_use_tools=False)
    expected.expect_tools(is_likely=True)
    assert expected.token("Let me look.") == []
    unexpected = Answer(may_use_tools=True)
    unexpected.expect_tools(is_likely=False)
    assert unexpected.token("Hello.") == [Delta("content", "Hello.")]


def test_after_a_first_tool_call_text_is_held_even_where_none_was_expected() -> None:
    answer = live()
    told(answer, ("tool_call", "read", "{}"))
    assert answer.token("Now the other one.") == []
    thought = told(answer, ("tool_call", "write", "{}"))
    assert joined(thought, "reasoning_content") == "Now the other one.\n→ write {}\n"
    assert joined(answer.finish("Done.")) == "Done."


def test_parallel_calls_of_one_reply_repeat_no_remark() -> None:
    answer = Answer()
    deltas = answer.tool_call("read", "{}", call_id="a", remark="I read both.")
    deltas += answer.tool_call("read", "{}", call_id="b", remark="I read both.")
    assert joined(deltas, "reasoning_content") == "I read both.\n→ read {}\n→ read {}\n"


def test_the_same_call_told_twice_is_one_call() -> None:
    answer = Answer()
    assert answer.tool_call("read", "{}", call_id="a")
    assert answer.tool_call("read", "{}", call_id="a") == []


def test_long_arguments_are_cut() -> None:
    deltas = Answer().tool_call("write", "x" * 1000)
    assert len(joined(deltas, "reasoning_content")) < 300


def test_a_notice_stands_in_its_own_paragraph_before_further_text() -> None:
    answer = live()
    deltas = told(
        answer,
        ("notice", "compacting 98,412 tokens ..."),
        ("notice", "freed 71,366 tokens"),
        ("token", "Further"),
        ("finish", "Further text."),
    )
    assert joined(deltas) == "> compacting 98,412 tokens ...\n\n> freed 71,366 tokens\n\nFurther text."
    assert answer.notices == ["compacting 98,412 tokens ...", "freed 71,366 tokens"]


def test_a_notice_splits_no_word_and_changes_no_text() -> None:
    deltas = told(
        live(), ("token", "The wat"), ("notice", "compacting ..."), ("token", "er ris"), ("finish", "The water rises.")
    )
    assert joined(deltas) == "The water\n\n> compacting ...\n\nrises."


def test_a_notice_that_waits_for_the_end_of_a_word_is_told_at_the_end() -> None:
    deltas = told(live(), ("token", "Water"), ("notice", "compacting ..."), ("finish", "Water"))
    assert joined(deltas) == "Water\n\n> compacting ...\n\n"
    assert joined(told(live(), ("token", "Water"), ("notice", "left"), ("close",))) == "Water\n\n> left\n\n"


@pytest.mark.parametrize(("place", "part"), [("reasoning", "reasoning_content"), ("off", "")])
def test_notices_elsewhere_leave_the_content_alone(place: Any, part: str) -> None:
    answer = live(notices=place)
    deltas = told(answer, ("thinking", "hm"), ("notice", "compacting ..."), ("finish", "Text."))
    assert joined(deltas) == "Text."
    assert ("> compacting ..." in joined(deltas, part)) is bool(part)
    assert answer.notices == ["compacting ..."]


def test_an_agent_that_shows_its_text_whole_does_not_repeat_it() -> None:
    assert joined(told(live(), ("whole", "All."), ("whole", "All."), ("finish", "All."))) == "All."


pieces = st.lists(st.text(alphabet="ab \n", min_size=1, max_size=6), max_size=12)


@given(pieces, st.integers(min_value=0, max_value=30), st.booleans())
def test_however_it_is_cut_a_streamed_answer_is_the_final_chat(cut: list[str], hold: int, tools: bool) -> None:
    answer = Answer(hold_characters=hold, may_use_tools=tools)
    text = "".join(cut)
    deltas = told(answer, *(("token", piece) for piece in cut), ("finish", text))
    assert joined(deltas) == text


@given(pieces, pieces)
def test_remarks_within_the_hold_never_reach_the_content(remark: list[str], cut: list[str]) -> None:
    answer = Answer(hold_characters=1000)
    deltas = told(answer, *(("token", piece) for piece in remark), ("tool_call", "t", "{}"))
    deltas += told(answer, *(("token", piece) for piece in cut), ("finish", "".join(cut)))
    assert joined(deltas) == "".join(cut)
