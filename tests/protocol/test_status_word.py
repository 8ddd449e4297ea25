"""A status: how it is written and read, and that every word that programs send is in the file of words."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.payloads.participant import Status
from mew_protocol.status_word import WORDS, StatusWord, status_word

ROOT = Path(__file__).parents[2]


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


def test_every_status_word_in_the_source_is_in_the_file() -> None:
    used = set()
    for file in (*ROOT.glob("mew_agent/**/*.py"), *ROOT.glob("spaces/**/*.py"), *ROOT.glob("protocol/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "status_word" and node.args:
                used |= {one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)}
    assert len(used) > 20
    assert {str(one) for one in used} - {"compaction_"} <= set(WORDS)


def test_no_module_joins_a_word_and_its_detail_itself() -> None:
    joined = re.compile(rf"({'|'.join(WORDS)}): ?")
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in (*ROOT.glob("mew_agent/**/*.py"), *ROOT.glob("spaces/**/*.py"), *ROOT.glob("protocol/**/*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr)
        and isinstance(first := node.values[0], ast.Constant)
        and joined.fullmatch(str(first.value))
    ]
    assert found == []


def test_a_word_with_a_detail_is_sent_without_a_blank() -> None:
    assert str(status_word("refused", " busy ")) == "refused:busy"
