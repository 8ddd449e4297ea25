"""The two forms of a message's content."""

import pytest

from mew_agent.rehearsal.content import text_of


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "image_url"}, "x"], ""),
        (None, ""),
        (7, ""),
    ],
)
def test_message_text_is_found_in_both_forms(content: object, text: str) -> None:
    assert text_of({"role": "user", "content": content}) == text


def test_a_message_without_content_has_no_text() -> None:
    assert text_of({"role": "assistant"}) == ""
