"""The history: items, the request built from them, and what raises the revision."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.context.history import PINS_HEADING, SUMMARY_HEADING, History, Pin, Summary, summary_text
from mew_agent.model.interface import Message, ToolCall
from tests.support.histories import TURNS, MadeTurn, history_of


def test_an_empty_history_has_no_newest_item_and_sends_nothing() -> None:
    history = History()
    assert (len(history.items), history.last_seq, history.request_messages("")) == (0, -1, ())


def test_items_get_growing_numbers_and_the_turn_they_belong_to() -> None:
    history = history_of([MadeTurn((1,)), MadeTurn()])
    assert [item.seq for item in history.items] == [0, 1, 2, 3, 4, 5]
    assert [item.turn for item in history.items] == [1, 1, 1, 1, 2, 2]
    assert history.last_seq == 5


def test_appending_raises_no_revision_and_every_other_change_does() -> None:
    history = history_of([MadeTurn((1,)), MadeTurn()])
    assert history.revision == 0
    history.stub([2])
    assert history.revision == 1
    history.evict(0, 3, None)
    assert history.revision == 2
    history.clear()
    assert history.revision == 3


def test_numbers_are_never_used_again() -> None:
    history = history_of([MadeTurn()])
    history.clear()
    assert history.append("user", "again", id="i", at="t").seq == 2
    history.evict(2, 2, None)
    assert history.append("user", "again", id="j", at="t").seq == 3


def test_a_request_has_system_prompt_pins_summary_and_items_in_order() -> None:
    history = History(pins=[Pin("p", "Never delete.")], summary=Summary("Frames."))
    history.append("user", "And now?", id="i", at="t", name="ada")
    assert history.request_messages("Be brief.") == (
        Message("system", f"Be brief.\n\n{PINS_HEADING}\n[p] Never delete."),
        Message("user", f"{SUMMARY_HEADING}\nFrames."),
        Message("user", "And now?", "ada"),
    )
    assert summary_text("Frames.") == f"{SUMMARY_HEADING}\nFrames."


def test_evicting_returns_the_removed_items_and_sets_the_summary() -> None:
    history = history_of([MadeTurn(), MadeTurn()])
    summary = Summary("Frames.")
    gone = history.evict(0, 1, summary)
    assert [item.seq for item in gone] == [0, 1]
    assert [item.seq for item in history.items] == [2, 3]
    assert history.summary == summary


def test_only_tool_results_become_notes_with_an_id() -> None:
    history = history_of([MadeTurn((2,))], ["a long text"])
    stubs = history.stub([0, 1, 2, 99])
    assert [item.seq for item in stubs] == [2]
    note = history.items[2]
    assert note.stubbed
    assert "r2" in note.content
    assert "a long text" not in note.content
    assert note.tool_call_id == "call-1-0"
    assert [item.stubbed for item in history.items] == [False, False, True, False, False]


def test_clearing_leaves_the_pins_and_says_how_many_items_left() -> None:
    history = history_of([MadeTurn((1,))])
    history.pins.append(Pin("p", "Never delete."))
    history.summary = Summary("Frames.")
    assert len(history.items) == 4
    history.clear()
    assert (history.items, len(history.pins)) == ([], 1)
    assert [message.role for message in history.request_messages("")] == ["system"]


def test_calls_without_a_result_are_open_until_it_comes() -> None:
    history = history_of([MadeTurn((1,))])
    assert history.open_calls() == frozenset()
    history.append(
        "assistant",
        "",
        id="a",
        at="t",
        tool_calls=(
            ToolCall("x", "f", ""),
            ToolCall("y", "f", ""),
        ),
    )
    assert history.open_calls() == {"x", "y"}
    history.append("tool", "done", id="r", at="t", tool_call_id="y")
    assert history.open_calls() == {"x"}


def test_a_call_id_used_again_is_open_again() -> None:
    history = History()
    for number in range(2):
        history.append("assistant", "", id=f"a{number}", at="t", tool_calls=(ToolCall("call_0", "f", ""),))
        assert history.open_calls() == {"call_0"}
        if number == 0:
            history.append("tool", "done", id="r", at="t", tool_call_id="call_0")
            assert history.open_calls() == frozenset()


@pytest.mark.parametrize("left", ["cleared", "evicted", "never there"])
def test_a_result_without_its_call_is_not_sent(left: str) -> None:
    history = History()
    if left != "never there":
        history.append("assistant", "", id="a", at="t", tool_calls=(ToolCall("c", "f", ""),))
        if left == "cleared":
            history.clear()
        else:
            history.evict(0, 0, None)
    history.append("tool", "late", id="r", at="t", tool_call_id="c")
    history.append("user", "Well?", id="u", at="t")
    assert [message.role for message in history.request_messages("")] == ["user"]
    assert history.open_calls() == frozenset()


@given(TURNS, st.integers(0, 30), st.integers(0, 30))
def test_no_cut_leaves_a_result_without_its_call(turns: list[MadeTurn], one: int, other: int) -> None:
    history = history_of(turns)
    history.evict(min(one, other), max(one, other), None)
    requested: set[str] = set()
    for message in history.request_messages(""):
        requested |= {call.id for call in message.tool_calls}
        assert message.role != "tool" or message.tool_call_id in requested


def test_the_counted_text_of_an_item_holds_its_calls() -> None:
    history = History()
    item = history.append("assistant", "I look.", id="a", at="t", tool_calls=(ToolCall("c", "read", '{"path": "x"}'),))
    assert item.text() == 'I look.read{"path": "x"}'


def test_a_note_precedes_the_newest_turn_without_an_item() -> None:
    history = History()
    for text in ("old", "new"):
        history.begin_turn()
        history.append("user", text, id=text, at="t")
        history.append("assistant", f"answer to {text}", id=f"a-{text}", at="t")
    sent = [message.content for message in history.request_messages("", "a note")]
    assert sent == ["old", "answer to old", "a note", "new", "answer to new"]
    assert len(history.items) == 4
    history.begin_turn()
    assert [message.content for message in history.request_messages("", "a note")][-1] == "a note"
