"""What a notice says in the stream."""

from mew_agent.conversation.notices import Notice, ignore_notice


def test_what_a_notice_does_not_say_is_left_out() -> None:
    assert Notice("compacting", "Compacting ...").values() == {"text": "Compacting ..."}
    size = Notice("size", tokens=0, max_tokens=4096, basis="projected")
    assert size.values() == {"tokens": 0, "max_tokens": 4096, "basis": "projected"}


async def test_nobody_needs_to_watch() -> None:
    await ignore_notice(Notice("compacted"))
