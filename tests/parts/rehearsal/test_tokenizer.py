"""The tokenizer keeps all text and has the proportions of a real vocabulary."""

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.parts.rehearsal.tokenizer import (
    TOKENS_FOR_PRIMER,
    TOKENS_FOR_TOOLS,
    TOKENS_PER_MESSAGE,
    TOKENS_PER_TOOL,
    count,
    count_request,
    count_tool_call,
    encode,
    render_request,
)
from tests.support.conversation_driver import count_message

PROSE = "A workspace holds many agents, and nobody has to guess how full a context window is at the moment. "
DIGEST = hashlib.sha512(b"rehearsal").digest() * 8
TEXTS = st.text(max_size=200) | st.text(alphabet="aZ é7_-.\n\t 中文", max_size=80)


@given(TEXTS)
def test_joined_tokens_are_the_original_text(text: str) -> None:
    assert "".join(encode(text)) == text
    assert count(text) == len(encode(text))


@given(TEXTS, st.integers(min_value=0, max_value=200))
def test_a_reply_cut_at_n_tokens_counts_n_tokens(text: str, size: int) -> None:
    tokens = encode(text)[:size]
    assert encode("".join(tokens)) == tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello world", ["Hello", " world"]),
        ("internationalisation", ["internati", "onali", "satio", "n"]),
        ("getUserName", ["get", "User", "Name"]),
        ("12345", ["123", "45"]),
        ("你好", ["你", "好"]),
        ("a  b\n\nc", ["a", "  ", "b", "\n\n", "c"]),
        ("", []),
    ],
)
def test_each_kind_of_text_is_split_as_documented(text: str, tokens: list[str]) -> None:
    assert encode(text) == tokens


@pytest.mark.parametrize(
    ("text", "at_least", "at_most"),
    [
        pytest.param(PROSE * 20, 4.0, 6.0, id="prose"),
        pytest.param(json.dumps([{"id": n, "name": f"item {n}"} for n in range(50)]), 1.8, 3.5, id="json"),
        pytest.param(DIGEST.hex(), 1.2, 2.2, id="hex"),
        pytest.param(base64.b64encode(DIGEST).decode(), 1.2, 2.2, id="base64"),
        pytest.param("这是一个用来检查的句子" * 20, 1.0, 1.0, id="chinese"),
    ],
)
def test_characters_per_token_match_a_real_vocabulary(text: str, at_least: float, at_most: float) -> None:
    assert at_least <= len(text) / count(text) <= at_most


MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=40)}), max_size=6
)


@given(MESSAGES, MESSAGES)
def test_template_tokens_are_additive(first: list[dict[str, str]], second: list[dict[str, str]]) -> None:
    both = count_request(first + second)
    assert both == count_request(first) + count_request(second) - TOKENS_FOR_PRIMER


def test_every_part_of_a_request_is_counted() -> None:
    assert count_request([]) == TOKENS_FOR_PRIMER
    assert count_message({"role": "user", "content": "Hello world"}) == TOKENS_PER_MESSAGE + 2
    assert count_message({"role": "user", "content": "Hello", "name": "ada"}) == TOKENS_PER_MESSAGE + 1 + 2
    function = {"name": "add", "arguments": "{}"}
    call = {"id": "some-long-id-that-is-not-rendered", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert count_message(message) == TOKENS_PER_MESSAGE + count_tool_call("add", "{}")
    tool = {"type": "function", "function": {"name": "add"}}
    rendered = '{"function":{"name":"add"},"type":"function"}'
    assert count_request([], [tool]) == TOKENS_FOR_PRIMER + TOKENS_FOR_TOOLS + TOKENS_PER_TOOL + count(rendered)


CALLS = st.lists(
    st.just("x") | st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": TEXTS, "arguments": TEXTS})}),
    max_size=2,
)
CALLING = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none(), "name": TEXTS, "tool_calls": CALLS}
)
TOOLS = st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": st.dictionaries(TEXTS, TEXTS)}))


@given(MESSAGES, st.lists(CALLING, max_size=2), TOOLS)
def test_a_rendered_prompt_has_as_many_tokens_as_are_counted(
    messages: list[Any], calling: list[Any], tools: list[Any]
) -> None:
    assert len(render_request(messages + calling, tools)) == count_request(messages + calling, tools)


def test_malformed_calls_cost_their_frame() -> None:
    plain = count_message({"role": "assistant", "content": ""})
    assert count_message({"role": "assistant", "content": "", "tool_calls": ["x"]}) == plain + count_tool_call("", "")
    assert count_message({"role": "assistant", "content": "", "tool_calls": None}) == plain
