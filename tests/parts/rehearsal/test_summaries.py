"""Summary requests, and the summaries that answer them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.compaction.summary import SECTIONS, summary_messages
from mew_agent.context.history import Item
from mew_agent.parts.rehearsal.summaries import is_summary_request, summarise, text_to_summarise
from mew_agent.parts.rehearsal.tokenizer import count

INSTRUCTIONS = """You summarise the older part of a conversation.
Use exactly these headings:

## Goal and request
## Decisions and their reasons
## Facts: names, paths, ids, numbers
## Open and next

Cite the message a fact comes from as [id]. Use at most 300 tokens."""
TALK = [
    ("env-1", "ada", "Please review src/app/main.py and find out why the gateway drops slow readers."),
    ("env-2", "me", "The gateway drops readers whose buffer holds more than 4 MB. I decided to keep that limit."),
    ("env-3", "ada", "We should look at tests/test_gateway.py next. Do slow readers get a warning?"),
]


def repeated(text: str, times: int) -> str:
    """A longer source, and so a longer summary, without new content."""
    return "\n".join([text] * times)


def blocks(repeat: int = 1) -> str:
    return "\n".join(
        f'<message id="{id_}" from="{who}">\n{repeated(text, repeat)}\n</message>' for id_, who, text in TALK
    )


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


@pytest.mark.parametrize(
    "messages",
    [
        [system(INSTRUCTIONS), user(blocks())],
        [system("You are a summarizer."), user("text")],
        [system("Your task is to summarize conversations."), user("text")],
        [user("a"), user("Summarise the conversation so far.")],
        [user("a"), user("Please summarize this:\n" + "text " * 400)],
        [user("a"), user("Could you write a short summary of our talk?")],
        [user("text " * 400 + "\nWrite a summary of the above.")],
        [user("ada: summarise what we have")],
    ],
)
def test_a_summary_request_is_recognised(messages: list[dict[str, Any]]) -> None:
    assert is_summary_request(messages)


@pytest.mark.parametrize(
    "messages",
    [
        [system("You review Python. Older turns may be replaced by a summary."), user("Hello")],
        [user("Cheapest first: clear old tool outputs, then summarise into fixed sections.")],
        [user("The summary of the chapter was good.")],
        [user("Summarise this."), {"role": "assistant", "content": "x"}, user("Thanks. What now?")],
        [user('<message id="1" from="ada">\nSummarise everything.\n</message>\nWhat did ada ask?')],
        [],
    ],
)
def test_text_about_summaries_is_not_a_summary_request(messages: list[dict[str, Any]]) -> None:
    assert not is_summary_request(messages)
    assert summarise(messages, 100) == ""
    assert text_to_summarise(messages) == ""


def test_the_summary_request_of_our_compaction_is_recognised() -> None:
    texts = [TALK[0][2], *(f"Point {number}: the gateway must warn reader {number}." for number in range(60))]
    items = [Item(seq, "user", text, seq, f"item-{seq}", "2026-01-01") for seq, text in enumerate(texts)]
    sent = [{"role": message.role, "content": message.content} for message in summary_messages(items, None, 200)]
    assert is_summary_request(sent)
    summary = summarise(sent, 600)
    assert summary.startswith(f"## {SECTIONS[0]}")
    assert "src/app/main.py" in summary
    assert count(summary) <= 200


def test_headings_of_the_request_become_filled_sections() -> None:
    summary = summarise([system(INSTRUCTIONS), user(blocks(repeat=24))], 600)
    sections = {part.partition("\n")[0]: part for part in summary.split("## ")}
    assert "review src/app/main.py" in sections["Goal and request"]
    assert "I decided to keep that limit. [env-2]" in sections["Decisions and their reasons"]
    assert "tests/test_gateway.py" in sections["Facts: names, paths, ids, numbers"]
    assert "Do slow readers get a warning? [env-3]" in sections["Open and next"]


def test_without_headings_key_sentences_stay_in_order() -> None:
    summary = summarise(
        [user(repeated(TALK[0][2], 24)), user(repeated(TALK[2][2], 24)), user("Summarise the above.")], 600
    )
    lines = summary.splitlines()
    assert lines[0].startswith("Please review")
    assert lines[-1] == "Names: src/app/main.py, tests/test_gateway.py"


def test_different_conversations_get_different_summaries() -> None:
    first = summarise([user("The Elbe is a long river in Europe."), user("Summarise the above.")], 600)
    second = summarise([user("The Nile is a long river in Africa."), user("Summarise the above.")], 600)
    assert "Elbe" in first
    assert "Nile" in second


def test_system_prompts_and_the_request_are_not_summarised() -> None:
    messages = [system("Be polite to all the visitors."), user("Rivers carry much water."), user("Summarise the talk.")]
    assert text_to_summarise(messages) == "Rivers carry much water."


def test_a_summary_has_the_tags_that_the_end_of_the_request_names() -> None:
    asked = "Your task is to write a summary.\n<example>\n<summary>\n1. [...]\n</summary>\n</example>\n" + "More. " * 80
    asked += "Respond with plain text only: an <analysis> block followed by a <summary> block."
    summary = summarise([user(repeated(TALK[0][2], 24)), user(asked)], 100)
    assert summary.startswith("<summary>\nPlease review")
    assert summary.endswith("\n</summary>")
    assert count(summary) <= 100


def test_fenced_text_in_the_request_is_summarised() -> None:
    assert text_to_summarise([user("Summarise this:\n```\nRivers carry water.\n```\n")]) == "Rivers carry water."


def test_an_element_without_an_end_does_not_hide_the_next() -> None:
    text = "Summarise this:\n<note>\n<message id='1'>\nRivers carry water.\n</message>\n</other>"
    assert text_to_summarise([user(text)]) == "Rivers carry water."


WORDS = st.sampled_from(["gateway", "agent", "decided", "must", "42", "src/a.py", "next", "window", "token", "open"])
SENTENCES = st.lists(WORDS, min_size=4, max_size=12).map(lambda words: " ".join(words) + ". ")


@given(
    st.lists(SENTENCES, min_size=1, max_size=60),
    st.integers(min_value=1, max_value=400),
    st.sampled_from([INSTRUCTIONS, "You summarise."]),
)
def test_a_summary_never_exceeds_its_limits(texts: list[str], limit_tokens: int, instructions: str) -> None:
    source = [user(text) for text in texts]
    summary = summarise([system(instructions), *source], limit_tokens)
    size = sum(count(text) for text in texts)
    headings = sum(count(line) + 1 for line in summary.splitlines() if line.startswith("#"))
    assert count(summary) <= max(min(limit_tokens, max(64, size // 6)), headings)
