"""The order of an answer's events, and that no text comes twice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.participant.answers.builder import AnswerEvent, Thinking, Writing
from mew_agent.parts.shared.text_answer import TextAnswer


def joined(events: list[AnswerEvent], part: type[Thinking | Writing] = Writing) -> str:
    return "".join(event.text for event in events if isinstance(event, part))


def reported(answer: TextAnswer, *steps: tuple[Any, ...]) -> list[AnswerEvent]:
    """Call methods such as `("add_text", "text")` and collect the events that they return."""
    events: list[AnswerEvent] = []
    for name, *values in steps:
        events += getattr(answer, name)(*values)
    return events


def live(**options: Any) -> TextAnswer:
    return TextAnswer(may_use_tools=False, **options)


def test_the_final_chat_adds_nothing_to_streamed_text() -> None:
    answer = live()
    assert answer.add_text("One ") == [Writing("One ")]
    assert answer.add_text("two.") == [Writing("two.")]
    assert answer.finish("One two.") == []
    assert answer.text == "One two."


def test_final_chat_without_a_stream_is_one_event() -> None:
    assert live().finish("All of it.") == [Writing("All of it.")]


def test_text_missing_at_the_end_of_the_stream_is_added() -> None:
    events = reported(live(), ("add_text", "One "), ("finish", "One two."))
    assert joined(events) == "One two."


def test_trimmed_white_space_does_not_make_another_text() -> None:
    assert joined(reported(live(), ("add_text", "\n\nOne."), ("add_text", "\n"), ("finish", "One."))).strip() == "One."
    assert joined(reported(live(), ("add_text", "\n\nOne "), ("finish", "One two."))).strip() == "One two."


def test_different_final_chat_is_a_paragraph_of_its_own() -> None:
    events = reported(live(), ("add_text", "The tide is"), ("finish", "My model's answer was cut off."))
    assert joined(events) == "The tide is\n\nMy model's answer was cut off."


def test_text_of_a_repeated_call_is_not_shown_again() -> None:
    events = reported(live(), ("add_text", "The ti"), ("add_text", "The tide rises."), ("finish", "The tide rises."))
    assert joined(events).count("The tide rises.") == 1


def test_restarted_call_is_announced_if_its_text_was_shown() -> None:
    steps = [
        ("add_text", "The ti"),
        ("restart_call", "stopped there"),
        ("add_text", "The tide "),
        ("add_text", "rises."),
    ]
    answer = live()
    events = reported(answer, *steps, ("finish", "The tide rises."))
    assert joined(events) == "The ti\n\n> stopped there\n\nThe tide rises."
    assert answer.notices == ["stopped there"]


def test_held_text_of_a_restarted_call_becomes_thinking() -> None:
    answer = TextAnswer()
    events = reported(
        answer, ("add_text", "The ti"), ("restart_call", "stopped there"), ("add_text", "Low."), ("finish", "Low.")
    )
    assert (joined(events), joined(events, Thinking)) == ("Low.", "The ti\n")
    assert answer.notices == []


def test_restarted_call_without_text_is_not_announced() -> None:
    assert reported(live(), ("restart_call", "stopped there"), ("finish", "Low.")) == [Writing("Low.")]


def test_text_before_a_tool_call_becomes_thinking() -> None:
    answer = TextAnswer(hold_characters=50)
    events = reported(
        answer, ("add_text", "Let me look."), ("add_tool_call", "read", '{"a": 1}'), ("add_text", "It is")
    )
    events += answer.finish("It is blue.")
    assert joined(events) == "It is blue."
    assert joined(events, Thinking) == 'Let me look.\n→ read {"a": 1}\n'


def test_text_longer_than_the_hold_is_shown_before_the_answer() -> None:
    answer = TextAnswer(hold_characters=10)
    events = reported(
        answer, ("add_text", "I think I should look."), ("add_tool_call", "read", "{}"), ("finish", "Blue.")
    )
    assert joined(events) == "I think I should look.\n\nBlue."


def test_held_text_is_released_once_it_exceeds_the_hold() -> None:
    answer = TextAnswer(hold_characters=10)
    assert answer.add_text("0123456789") == []
    assert answer.add_text("X") == [Writing("0123456789X")]
    assert answer.add_text("Y") == [Writing("Y")]


def test_announced_tools_decide_whether_text_is_held() -> None:
    expected = TextAnswer(may_use_tools=False)
    expected.expect_tools(is_likely=True)
    assert expected.add_text("Let me look.") == []
    unexpected = TextAnswer(may_use_tools=True)
    unexpected.expect_tools(is_likely=False)
    assert unexpected.add_text("Hello.") == [Writing("Hello.")]


def test_text_is_held_after_a_first_unexpected_tool_call() -> None:
    answer = live()
    reported(answer, ("add_tool_call", "read", "{}"))
    assert answer.add_text("Now the other one.") == []
    thought = reported(answer, ("add_tool_call", "write", "{}"))
    assert joined(thought, Thinking) == "Now the other one.\n→ write {}\n"
    assert joined(answer.finish("Done.")) == "Done."


def test_parallel_calls_of_one_reply_repeat_no_remark() -> None:
    answer = TextAnswer()
    events = answer.add_tool_call("read", "{}", call_id="a", remark="I read both.")
    events += answer.add_tool_call("read", "{}", call_id="b", remark="I read both.")
    assert joined(events, Thinking) == "I read both.\n→ read {}\n→ read {}\n"


def test_repeated_call_id_is_one_call() -> None:
    answer = TextAnswer()
    assert answer.add_tool_call("read", "{}", call_id="a")
    assert answer.add_tool_call("read", "{}", call_id="a") == []


def test_long_arguments_are_cut() -> None:
    events = TextAnswer().add_tool_call("write", "x" * 1000)
    assert len(joined(events, Thinking)) < 300


def test_notice_is_a_paragraph_of_its_own_before_further_text() -> None:
    answer = live()
    events = reported(
        answer,
        ("add_notice", "compacting 98,412 tokens ..."),
        ("add_notice", "freed 71,366 tokens"),
        ("add_text", "Further"),
        ("finish", "Further text."),
    )
    assert joined(events) == "> compacting 98,412 tokens ...\n\n> freed 71,366 tokens\n\nFurther text."
    assert answer.notices == ["compacting 98,412 tokens ...", "freed 71,366 tokens"]


def test_notice_splits_no_word_and_changes_no_text() -> None:
    events = reported(
        live(),
        ("add_text", "The wat"),
        ("add_notice", "compacting ..."),
        ("add_text", "er ris"),
        ("finish", "The water rises."),
    )
    assert joined(events) == "The water\n\n> compacting ...\n\nrises."


def test_a_notice_follows_an_unfinished_word() -> None:
    events = reported(live(), ("add_text", "Water"), ("add_notice", "compacting ..."), ("finish", "Water"))
    assert joined(events) == "Water\n\n> compacting ...\n\n"
    assert joined(reported(live(), ("add_text", "Water"), ("add_notice", "left"), ("close",))) == "Water\n\n> left\n\n"


@pytest.mark.parametrize(("place", "part"), [("reasoning", Thinking), ("off", None)])
def test_notices_elsewhere_leave_the_content_unchanged(place: Any, part: type[Thinking] | None) -> None:
    answer = live(notices=place)
    events = reported(answer, ("add_thinking", "hm"), ("add_notice", "compacting ..."), ("finish", "Text."))
    assert joined(events) == "Text."
    assert ("> compacting ..." in joined(events, Thinking)) is (part is not None)
    assert answer.notices == ["compacting ..."]


def test_text_sent_as_a_whole_is_not_repeated() -> None:
    assert (
        joined(reported(live(), ("add_whole_text", "All."), ("add_whole_text", "All."), ("finish", "All."))) == "All."
    )


pieces = st.lists(st.text(alphabet="ab \n", min_size=1, max_size=6), max_size=12)


@given(pieces, st.integers(min_value=0, max_value=30), st.booleans())
def test_answer_equals_the_final_chat_however_it_is_split(cut: list[str], hold: int, tools: bool) -> None:
    answer = TextAnswer(hold_characters=hold, may_use_tools=tools)
    text = "".join(cut)
    events = reported(answer, *(("add_text", piece) for piece in cut), ("finish", text))
    assert joined(events) == text


@given(pieces, pieces)
def test_remarks_shorter_than_the_hold_never_reach_the_content(remark: list[str], cut: list[str]) -> None:
    answer = TextAnswer(hold_characters=1000)
    events = reported(answer, *(("add_text", piece) for piece in remark), ("add_tool_call", "t", "{}"))
    events += reported(answer, *(("add_text", piece) for piece in cut), ("finish", "".join(cut)))
    assert joined(events) == "".join(cut)
