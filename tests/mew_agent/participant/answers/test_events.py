"""What an agent shows while it answers, as typed pieces."""

from mew_agent.participant.answers.events import ContextNotice, Pieces, Thinking, ToolCalled, Writing


def test_text_is_the_answer_piece_by_piece_and_is_not_told_twice() -> None:
    pieces = Pieces(may_use_tools=False)
    assert pieces.token("The tide ") == [Writing("The tide ")]
    assert pieces.token("is high.") == [Writing("is high.")]
    assert pieces.finish("The tide is high.") == []
    assert pieces.text == "The tide is high."


def test_text_before_a_tool_call_is_thinking_and_a_call_is_told_once() -> None:
    pieces = Pieces(may_use_tools=True)
    assert pieces.token("Let me look.") == []
    said, called = pieces.tool_call("tide", '{"place": "Brest"}', call_id="c-1")
    assert said == Thinking("Let me look.\n")
    assert called == ToolCalled("tide", '{"place": "Brest"}')
    assert pieces.tool_call("tide", '{"place": "Brest"}', call_id="c-1") == []
    assert pieces.finish("High.") == [Writing("High.")]


def test_a_model_without_tools_is_not_held_back() -> None:
    pieces = Pieces(may_use_tools=True)
    pieces.expect_tools(is_likely=False)
    assert pieces.whole("At once.") == [Writing("At once.")]


def test_thinking_and_notices_are_no_answer() -> None:
    pieces = Pieces(may_use_tools=False)
    assert pieces.thinking("Hm.") == [Thinking("Hm.")]
    pieces.token("The ti")
    assert pieces.notice("compacting ...") == [ContextNotice("compacting ...")]
    assert pieces.notices == ["compacting ..."]
    assert pieces.finish("The tide.") == [Writing("de.")]
    assert pieces.close() == []


def test_a_call_that_is_made_again_is_noticed() -> None:
    pieces = Pieces(may_use_tools=False)
    pieces.token("The ti")
    assert pieces.begin_again("stopped there") == [ContextNotice("stopped there")]
    assert pieces.token("Low.")[-1] == Writing("Low.")
    assert pieces.finish("Low.") == []
    held = Pieces(may_use_tools=True)
    held.token("Hm.")
    assert held.begin_again("stopped there") == [Thinking("Hm.\n")]
