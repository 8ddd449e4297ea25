"""An answer as typed events."""

from mew_agent.participant.answers.builder import AnswerBuilder, ContextNotice, Thinking, ToolCalled, Writing


def test_streamed_text_is_not_repeated_by_the_final_chat() -> None:
    pieces = AnswerBuilder(may_use_tools=False)
    assert pieces.add_text("The tide ") == [Writing("The tide ")]
    assert pieces.add_text("is high.") == [Writing("is high.")]
    assert pieces.finish("The tide is high.") == []
    assert pieces.text == "The tide is high."


def test_text_before_tool_calls_counts_as_thinking() -> None:
    pieces = AnswerBuilder(may_use_tools=True)
    assert pieces.add_text("Let me look.") == []
    said, called = pieces.add_tool_call("tide", '{"place": "Brest"}', call_id="c-1")
    assert said == Thinking("Let me look.\n")
    assert called == ToolCalled("tide", '{"place": "Brest"}')
    assert pieces.add_tool_call("tide", '{"place": "Brest"}', call_id="c-1") == []
    assert pieces.finish("High.") == [Writing("High.")]


def test_text_of_a_model_without_tools_is_not_held_back() -> None:
    pieces = AnswerBuilder(may_use_tools=True)
    pieces.expect_tools(is_likely=False)
    assert pieces.add_whole_text("At once.") == [Writing("At once.")]


def test_thinking_and_notices_are_not_part_of_the_answer() -> None:
    pieces = AnswerBuilder(may_use_tools=False)
    assert pieces.add_thinking("Hm.") == [Thinking("Hm.")]
    pieces.add_text("The ti")
    assert pieces.add_notice("compacting ...") == [ContextNotice("compacting ...")]
    assert pieces.notices == ["compacting ..."]
    assert pieces.finish("The tide.") == [Writing("de.")]
    assert pieces.close() == []


def test_restarted_call_causes_a_notice_only_if_its_text_was_shown() -> None:
    pieces = AnswerBuilder(may_use_tools=False)
    pieces.add_text("The ti")
    assert pieces.restart_call("stopped there") == [ContextNotice("stopped there")]
    assert pieces.add_text("Low.")[-1] == Writing("Low.")
    assert pieces.finish("Low.") == []
    held = AnswerBuilder(may_use_tools=True)
    held.add_text("Hm.")
    assert held.restart_call("stopped there") == [Thinking("Hm.\n")]
