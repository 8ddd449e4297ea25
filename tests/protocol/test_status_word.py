"""A status: how it is written and read, and that every word that programs send is in the file of words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.payloads.participant import Status
from mew_protocol.status_word import StatusWord, status_word


@given(st.text())
def test_a_status_is_written_in_one_form_and_read_as_the_same(text: str) -> None:
    read = StatusWord.read(text)
    assert StatusWord.read(str(read)) == read
    assert str(read) == ":".join(one.strip() for one in text.split(":", 1)).removesuffix(":" if not read.detail else "")


@pytest.mark.parametrize(
    ("wire", "word", "detail", "reason"),
    [
        ("active", "active", "", ""),
        ("tool_failed:grep: no such file", "tool_failed", "grep: no such file", "grep: no such file"),
        ("paused:loop with ada", "paused", "loop with ada", "loop with ada"),
        ("paused: loop with ada", "paused", "loop with ada", "loop with ada"),
        ("compaction_failed:a\n  b", "compaction_failed", "a\n  b", "a b"),
        (None, "", "", ""),
        (7, "", "", ""),
    ],
)
def test_a_status_is_a_word_and_a_detail(wire: object, word: str, detail: str, reason: str) -> None:
    read = StatusWord.read(wire)
    assert (read.word, read.detail, read.reason) == (word, detail, reason)


def test_a_status_reads_its_word() -> None:
    assert Status(messages_in_context=1, status="failed:no program").word == StatusWord("failed", "no program")


def test_a_word_that_no_reader_knows_is_not_sent() -> None:
    with pytest.raises(ValueError, match=r"no status word 'compacting:x'; add it to statuses\.json"):
        status_word("compacting:x")


def test_a_foreign_word_has_no_marks() -> None:
    assert not StatusWord.read("busy:with tea").has("calm", "warning", "blocking")
    assert StatusWord.read("model_unreachable:x").has("blocking")


def test_a_word_with_a_detail_is_sent_without_a_blank() -> None:
    assert str(status_word("refused", " busy ")) == "refused:busy"
