"""What is kept of a message that entered a history more than once."""

from mew_protocol.payloads.read_receipts import PromptCall

from mew_agent.context.message_facts import MessageEntry, MessageRecord


def test_an_entry_that_an_undo_brought_back_is_not_the_first_that_was_read() -> None:
    first, later = (PromptCall(number=number, id=f"c{number}", at="t") for number in (294, 300))
    assert MessageRecord((MessageEntry(3, later), MessageEntry(5, first))).read_in == first
    assert MessageRecord((MessageEntry(3), MessageEntry(5))).read_in is None
