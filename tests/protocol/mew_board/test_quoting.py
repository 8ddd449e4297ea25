"""Texts of others stay text in each language they are written into, read back by a parser of that language."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mew_board.quoting import (
    clean,
    indented,
    markdown_block,
    markdown_line,
    mew_command,
    one_line,
)

PIECES = (
    *(
        "#",
        "## ",
        "---",
        "===",
        "```",
        "~~~~",
        "> ",
        "- ",
        "1. ",
        "+ ",
        "\t",
        "    ",
        "* ",
        "|",
        "|-|",
        "***",
        "__",
        "_",
    ),
    *(
        "<h2>",
        "</pre>",
        "<!--",
        "-->",
        "<script>",
        "</message>",
        "<message from='ada'>",
        "&lt;",
        "&#35;",
        "\\",
        "`",
        "$",
    ),
    *("[a](b)", "![a](b)", "[a]: http://b", "[^1]", "http://e.org", "www.e.org", "a@e.org", ":smile:", "||"),
    *(
        "<!channel>",
        "<@U1>",
        "<https://e|here>",
        "@everyone",
        "@here",
        "@**all**",
        "<users/all>",
        "<at>x</at>",
        "http:",
    ),
    *(
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x85",
        "\u2028",
        "\u2029",
        "\0",
        "\x1b[2J",
        "\u200b",
        "\u202e",
    ),
    *("ada", "ada to bob, now", "a_b_c", " ", "é", "e\u0301", "\ufeff", "\u3000", "\ud800", "🎉"),
)
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=20).map("".join)
DIALECTS = (MarkdownIt("commonmark"), MarkdownIt("gfm-like", {"linkify": False}))
"""Without the search for bare addresses: a link that shows where it leads deceives nobody."""


def blocks(document: str, dialect: MarkdownIt) -> list[Token]:
    """The blocks of a document, from the outside in."""
    return [one for one in dialect.parse(document) if one.nesting >= 0]


@pytest.mark.parametrize("dialect", DIALECTS)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
def test_no_text_leaves_its_section_of_a_document(dialect: MarkdownIt, said: list[tuple[str, str]]) -> None:
    document = "\n".join(f"## by {markdown_line(who)}\n\n{markdown_block(text, 'markdown')}\n" for who, text in said)
    found = blocks(document, dialect)
    assert [one.type for one in found] == ["heading_open", "inline", "fence"] * len(said)
    for (who, text), heading, fence in zip(said, found[1::3], found[2::3], strict=True):
        assert [one.type for one in heading.children or ()] == ["text"]
        assert heading.children
        assert heading.children[0].content == f"by {one_line(who)}".strip()
        assert fence.content.splitlines() == [clean(line.expandtabs(4)) for line in text.splitlines()]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("begin", ["", "> ", "- "])
@given(TEXTS)
def test_a_line_of_markdown_shows_exactly_its_text(dialect: MarkdownIt, begin: str, text: str) -> None:
    found = blocks(f"{begin}{markdown_line(text)}", dialect)
    shown = one_line(text).strip()
    assert "".join(one.content for token in found for one in token.children or ()) == shown
    kinds = {"blockquote_open", "bullet_list_open", "list_item_open", "paragraph_open", "inline"}
    assert {one.type for one in found} <= kinds
    assert {one.type for token in found for one in token.children or ()} <= {"text"}


def test_names_of_tools_and_plain_words_are_shown_as_they_are() -> None:
    plain = 'coder waits for approval of read_file on files: {"path": "a/b-c.txt", "n": 5}'
    assert markdown_line(plain) == plain


@given(TEXTS, st.sampled_from(["  ", "          "]))
def test_each_further_line_of_an_entry_is_indented(text: str, margin: str) -> None:
    first, *more = indented(f"12:00 ada: {text}", margin).split("\n")
    assert first.startswith("12:00 ada: ")
    assert all(line.startswith(margin) for line in more)
    assert not set("\x00\x1b\r\x85\u2028\u202e\u200b") & set("".join((first, *more)))


@given(st.lists(st.text(), min_size=1, max_size=3))
def test_a_command_to_copy_has_as_many_arguments_as_names(names: list[str]) -> None:
    command = mew_command("approve", *names)
    assert command.isprintable()
    has_separator = any(one.startswith("-") for one in names)
    assert len(shlex.split(command)) == 2 + has_separator + len(names)


def test_a_command_to_copy_runs_nothing_else() -> None:
    assert mew_command("approve", "3f2a9c1b") == "mew approve 3f2a9c1b"
    assert mew_command("approve", ";reboot") == "mew approve ';reboot'"
    assert mew_command("approve", "--json") == "mew approve -- --json"
    assert mew_command("logs", "a\nb") == "mew logs 'a<U+000A>b'"
