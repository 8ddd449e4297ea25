"""Lists of peers, in every shape that peers send."""

import json
from typing import Any

import pytest
from hypothesis import given

from mew_agent.tools.peer_offers import (
    MAX_ENTRY_BYTES,
    MAX_LIST_BYTES,
    MAX_LISTED,
    InvalidList,
    PeerList,
    PeerPrompt,
    PeerResource,
    PeerTool,
)
from tests.support.strategies import json_values


def offered(peer: str, name: str, *entries: Any) -> tuple[Any, ...]:
    found = PeerList(peer, name)
    found.add(entries)
    return found.offers


ADD = {"name": "add", "description": "Add.", "inputSchema": {"type": "object", "properties": {"a": {}}}}


@pytest.mark.parametrize(
    ("result", "cursor"),
    [({"tools": [ADD]}, None), ({"tools": [ADD], "nextCursor": "2"}, "2"), ([ADD], None), ([ADD, 7, None], None)],
)
def test_a_list_may_be_bare_or_under_its_name(result: Any, cursor: str | None) -> None:
    found = PeerList("calc", "tools")
    assert found.add(result) == cursor
    assert found.entries == [ADD]


@pytest.mark.parametrize("result", [None, {}, "tools", {"tools": "add"}, 3])
def test_an_answer_that_is_not_a_list_is_refused(result: Any) -> None:
    with pytest.raises(InvalidList, match="expected a list of tools"):
        PeerList("calc", "tools").add(result)


def test_a_tool_keeps_its_schema_under_any_of_its_names() -> None:
    for key in ("inputSchema", "input_schema", "parameters"):
        (tool,) = offered("calc", "tools", {"name": "add", key: {"properties": {"a": {"type": "number"}}}})
        assert tool == PeerTool("calc", "add", "", {"type": "object", "properties": {"a": {"type": "number"}}})


@pytest.mark.parametrize("schema", [None, "object", {"type": "string"}, []])
def test_a_tool_without_a_schema_takes_any_object(schema: Any) -> None:
    (tool,) = offered("calc", "tools", {"name": "add", "inputSchema": schema})
    assert tool.schema == {"type": "object", "properties": {}}


def test_unnamed_and_repeated_entries_are_dropped() -> None:
    entries = ({"name": "add"}, {"name": "add", "description": "again"}, {"description": "nameless"}, {"name": 3})
    assert offered("calc", "tools", *entries) == (PeerTool("calc", "add"),)


def test_a_list_is_read_within_its_limits_in_the_peers_order() -> None:
    found = PeerList("calc", "tools")
    found.add([{"name": f"n{n}"} for n in range(MAX_LISTED + 5)])
    assert (len(found.entries), found.left_out, found.is_full) == (MAX_LISTED, 5, True)


@pytest.mark.parametrize(
    "large", [{"name": "x" * 300}, {"name": "big", "inputSchema": {"enum": ["x" * MAX_ENTRY_BYTES]}}]
)
def test_an_entry_that_is_too_large_is_left_out_alone(large: dict[str, Any]) -> None:
    found = PeerList("calc", "tools")
    found.add([{"name": "a"}, large, {"name": "b"}])
    assert ([one["name"] for one in found.entries], found.left_out, found.is_full) == (["a", "b"], 1, False)


def test_pages_are_read_until_their_bytes_are_spent() -> None:
    found = PeerList("calc", "tools")
    pages = 0
    while not found.is_full:
        found.add([{"name": f"{pages}-{n}", "description": "x" * 10_000} for n in range(10)])
        pages += 1
    assert pages == MAX_LIST_BYTES // 100_000 + 1
    assert sum(len(json.dumps(one)) for one in found.entries) <= MAX_LIST_BYTES


def test_resources_and_prompts_are_read_like_tools() -> None:
    resources = offered(
        "notes", "resources", {"uri": "notes://1", "name": "One", "mimeType": "text/plain"}, {"name": "x"}
    )
    assert resources == (PeerResource("notes", "notes://1", "One", "", "text/plain"),)
    prompts = offered(
        "notes", "prompts", {"name": "daily", "arguments": [{"name": "day"}, "bare", {}]}, {"arguments": 5}
    )
    assert prompts == (PeerPrompt("notes", "daily", "", ("day",)),)


@given(json_values)
def test_any_list_of_a_peer_can_be_read(raw: Any) -> None:
    for name in ("tools", "resources", "resourceTemplates", "prompts"):
        assert isinstance(offered("x", name, *(raw if isinstance(raw, list) else [raw])), tuple)


def test_a_tool_keeps_title_hints_and_output_schema() -> None:
    output = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    entry = {"name": "add", "title": "Add", "annotations": {"readOnlyHint": True}, "outputSchema": output}
    (tool,) = offered("calc", "tools", entry)
    assert (tool.title, tool.annotations, tool.output_schema) == ("Add", {"readOnlyHint": True}, output)
    (older,) = offered("calc", "tools", {"name": "add", "annotations": {"title": "Add"}, "outputSchema": 7})
    assert (older.title, older.output_schema) == ("Add", None)
