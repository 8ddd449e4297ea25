"""Tool results: read from functions and peers, shown to models, sent to peers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.json_values import well_formed
from pydantic_core import PydanticSerializationError

from mew_agent.model.image import Image
from mew_agent.tools.results import ToolResult
from tests.support.strategies import json_values

FAILED = {"content": [{"type": "text", "text": "no such file"}], "isError": True}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ({"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}, "one\ntwo"),
        ({"content": [{"type": "image"}]}, "[image of type unknown, not shown]"),
        ({"content": []}, '{"content": []}'),
        ({"content": ["a"], "pages": 3}, '{"content": ["a"], "pages": 3}'),
        ({"n": 1, "ö": [None, True]}, '{"n": 1, "ö": [null, true]}'),
        (None, "null"),
        ((1, 2), "[1, 2]"),
    ],
)
def test_a_function_result_reads_as_text(value: Any, text: str) -> None:
    result = ToolResult.from_value(value)
    assert (result.text, result.is_error, result.content) == (text, False, value)


def test_a_value_that_json_cannot_express_is_refused() -> None:
    with pytest.raises(PydanticSerializationError):
        ToolResult.from_value(object())


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (None, ""),
        ("plain", "plain"),
        (3, "3"),
        ({"sum": 3}, '{"sum": 3}'),
        ({"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}, "one\ntwo"),
        (
            {"content": [{"type": "image", "mimeType": "image/png", "data": "QUJD"}]},
            "[image of type image/png]",
        ),
        ({"content": [{"type": "resource_link", "uri": "notes://1"}]}, "[resource notes://1]"),
        ({"content": [{"type": "resource", "resource": {"uri": "n://1", "text": "hello"}}]}, "hello"),
        (
            {"content": [{"type": "resource", "resource": {"uri": "n://1", "blob": "QQ=="}}]},
            "[resource n://1, not shown]",
        ),
        ({"content": [], "structuredContent": {"sum": 3}}, '{"sum": 3}'),
        ({"structuredContent": {"sum": 3}}, '{"sum": 3}'),
        ({"content": []}, ""),
        ({"content": ["bare"]}, "bare"),
    ],
)
def test_a_peers_answer_reads_as_text(raw: Any, text: str) -> None:
    result = ToolResult.from_peer(raw)
    assert (result.text, result.is_error, result.content) == (text, False, raw)


@pytest.mark.parametrize("result", [ToolResult.from_value(FAILED), ToolResult.from_peer(FAILED)])
def test_mcp_content_says_whether_the_call_failed(result: ToolResult) -> None:
    assert result == ToolResult("no such file", is_error=True, content=FAILED)
    assert result.to_mcp() == FAILED


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ToolResult("42"), "42"),
        (ToolResult(""), "(no result)"),
        (ToolResult("Error: only a quotation"), "Error: only a quotation"),
        (ToolResult("out of paper", is_error=True), "Error: out of paper"),
        (ToolResult("Error: out of paper", is_error=True), "Error: out of paper"),
        (ToolResult("", is_error=True), "Error: (no result)"),
        (ToolResult.from_error(OSError("half \ud800 a character")), "Error: half ? a character"),
        (ToolResult.from_error(KeyError()), "Error: KeyError"),
    ],
)
def test_a_model_reads_failures_with_one_prefix(result: ToolResult, text: str) -> None:
    assert result.prompt_text == text


def test_a_failure_without_content_is_sent_as_mcp_text() -> None:
    sent = ToolResult("out of paper", is_error=True).to_mcp()
    assert sent == {"content": [{"type": "text", "text": "out of paper"}], "isError": True}


@given(json_values)
def test_any_answer_of_a_peer_can_be_read(raw: Any) -> None:
    assert ToolResult.from_peer(raw).prompt_text.encode()
    assert ToolResult.from_peer({"content": raw}).prompt_text.encode()


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_any_text_becomes_sendable_and_good_text_stays(text: str) -> None:
    sent = well_formed(text).encode().decode()
    assert len(sent) == len(text)
    assert sent == text or any(0xD800 <= ord(c) <= 0xDFFF for c in text)


def test_an_object_is_sent_as_text_and_as_structure() -> None:
    sent = ToolResult.from_value({"level": 3, "ratio": float("nan")}).to_mcp()
    assert sent["structuredContent"] == {"level": 3, "ratio": None}
    assert json.loads(sent["content"][0]["text"])["level"] == 3
    assert "structuredContent" not in ToolResult.from_value([1, 2]).to_mcp()
    assert "structuredContent" not in ToolResult.from_value('{"a": 1}').to_mcp()


def test_only_images_that_can_be_decoded_reach_a_model() -> None:
    parts = [
        {"type": "image", "mimeType": "image/png", "data": "aGk="},
        {"type": "image", "mimeType": "image/png", "data": "not base64"},
        {"type": "image", "mimeType": "text/html", "data": "aGk="},
        {"type": "audio", "mimeType": "audio/wav", "data": "aGk="},
    ]
    result = ToolResult.from_peer({"content": parts})
    assert result.images == (Image("image/png", "aGk="),)
    assert result.text.splitlines() == [
        "[image of type image/png]",
        "[image of type image/png, not shown]",
        "[image of type text/html, not shown]",
        "[audio of type audio/wav, not shown]",
    ]
