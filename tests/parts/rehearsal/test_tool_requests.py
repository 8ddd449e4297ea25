"""Requests for tools in a message, and the arguments found there."""

import json
from typing import Any

import pytest

from mew_agent.parts.rehearsal.tool_requests import requested_calls


def tool(name: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


READ = tool("read_file", path={"type": "string"})
ADD = tool("add", a={"type": "integer"}, b={"type": "number"})
SEARCH = tool("search", query={"type": "string"}, deep={"type": "boolean"}, kind={"enum": ["web", "code"]})


def calls(text: str, *tools: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in requested_calls(text, tools)]


@pytest.mark.parametrize(
    "text",
    [
        'call read_file with {"path": "a.txt"}',
        'Please use the tool `read_file` with arguments {"path": "a.txt"} now',
        'ada: run read_file: {"path": "a.txt"}',
        'I need read_file({"path": "a.txt"}) here',
        'read_file "a.txt"',
        'Invoke read/file with {"path": "a.txt"}',
    ],
)
def test_a_requested_tool_gets_the_given_arguments(text: str) -> None:
    assert calls(text, READ) == [("read_file", {"path": "a.txt"})]


def test_two_requests_in_a_message_are_two_calls() -> None:
    text = 'call add with {"a": 1, "b": 2} and then read_file with {"path": "x"} and call add with {"a": 3, "b": 4}'
    assert calls(text, READ, ADD) == [
        ("add", {"a": 1, "b": 2}),
        ("read_file", {"path": "x"}),
        ("add", {"a": 3, "b": 4}),
    ]


@pytest.mark.parametrize("text", ["Add some salt to the search results", "What is a file?", "", "call me later"])
def test_ordinary_words_call_no_tool(text: str) -> None:
    assert calls(text, READ, ADD, SEARCH) == []


def test_missing_arguments_are_filled_from_the_message() -> None:
    assert calls("call add on 3 and 4.5", ADD) == [("add", {"a": 3, "b": 4.5})]
    assert calls('use search for "rivers", kind code', SEARCH) == [
        ("search", {"query": "rivers", "deep": True, "kind": "code"})
    ]
    assert calls("use search please", tool("search", query={"type": "string"})) == [("search", {"query": "please"})]
    assert calls("use tidy", tool("tidy", names={"type": "array"}, how={"type": "object"})) == [
        ("tidy", {"names": [], "how": {}})
    ]


def test_invalid_json_after_a_name_is_not_forwarded() -> None:
    assert calls('call add with {"a": 1,', ADD) == [("add", {"a": 1, "b": 0.0})]


def test_the_prefix_of_a_tool_name_is_optional() -> None:
    assert calls('call read_file with {"path": "a"}', tool("files__read_file")) == [("files__read_file", {"path": "a"})]
    assert calls('call read_file with {"path": "a"}', tool("files-read_file")) == [("files-read_file", {"path": "a"})]


def test_a_name_inside_a_longer_name_is_ignored() -> None:
    assert calls("call read_file_lines with {}", READ, tool("read_file_lines")) == [("read_file_lines", {})]


def test_malformed_tools_are_ignored() -> None:
    assert (
        requested_calls("call x", [{"function": "x"}, {"function": {"name": "x", "parameters": None}}])[0].arguments
        == "{}"
    )


def test_a_name_that_no_provider_accepts_is_never_requested() -> None:
    name = "read_" * 50
    tool = {"type": "function", "function": {"name": name, "parameters": {}}}
    assert requested_calls(f"call {name}", [tool]) == ()
