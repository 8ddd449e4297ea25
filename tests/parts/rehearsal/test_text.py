"""The text of messages; sentences, identifiers and their ranking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.parts.rehearsal.text import (
    best_for,
    content_words,
    has_number,
    identifiers,
    message_text,
    most_central,
    sentences,
)


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
    assert message_text({"role": "user", "content": content}) == text


def test_a_message_without_content_has_no_text() -> None:
    assert message_text({"role": "assistant"}) == ""


def test_text_is_split_into_sentences_without_markup() -> None:
    text = "# A heading to drop\nThe first sentence. Is this the second?\n- a point in a list\nno\n"
    text += "这是第一个比较长的中文句子。"
    assert sentences(text) == (
        "The first sentence.",
        "Is this the second?",
        "a point in a list",
        "这是第一个比较长的中文句子。",
    )


def test_a_long_line_is_clipped_at_a_word() -> None:
    (sentence,) = sentences("word " * 500)
    assert len(sentence) <= 320
    assert sentence.endswith("word")
    (unbroken,) = sentences("x" * 5000)
    assert len(unbroken) <= 320


def test_stop_words_are_ignored() -> None:
    assert content_words("What is the Elbe, and where?") == {"elbe"}
    assert content_words("中文字") == {"中文", "文字"}


@pytest.mark.parametrize(
    "name",
    [
        "src/app/main.py", "/etc/hosts", "README.md", "https://example.org/a?b=1", "3f2a9c1",
        "123e4567-e89b-12d3-a456-426614174000", "env-42",
    ],
)  # fmt: skip
def test_names_are_found(name: str) -> None:
    assert identifiers([f"Look at {name}, please.", f"Again {name}"]) == [name]


def test_ordinary_words_are_not_names() -> None:
    assert identifiers(["The quick brown fox decided; it added faced beef."]) == []


def test_figures_are_found() -> None:
    assert has_number("It took 12.5 seconds")
    assert not has_number("It took version2b long")


def test_the_sentence_with_shared_rare_words_ranks_first() -> None:
    candidates = ["The river is long.", "The river Elbe is cold.", "Nothing here."]
    assert best_for(frozenset({"river", "elbe"}), candidates) == ["The river Elbe is cold.", "The river is long."]


def test_the_topic_sentence_ranks_first() -> None:
    candidates = ["Cats sleep.", "The gateway routes envelopes.", "Envelopes reach the gateway first."]
    assert most_central(candidates)[-1] == "Cats sleep."


@given(st.lists(st.text(max_size=60), max_size=8))
def test_ranking_keeps_every_sentence_once(candidates: list[str]) -> None:
    assert sorted(most_central(candidates)) == sorted(set(candidates))


@given(st.text(max_size=400))
def test_any_text_can_be_read(text: str) -> None:
    assert all(len(sentence) <= 320 for sentence in sentences(text))
    assert all(name in text for name in identifiers([text]))
