"""The MCP requests that a participant of this process answers."""

from collections.abc import Callable
from typing import Any

import pytest

from mew_agent.participant.participant import Participant
from mew_agent.tools.catalog import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, LocalOffers
from mew_agent.tools.catalog import RequestFailed as Failed
from mew_agent.tools.functions import Tool
from mew_agent.tools.resources import Resource


def offers() -> LocalOffers:
    made = LocalOffers()

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def diary(day: str) -> str:
        return f"rain on {day}"

    def broken() -> str:
        raise OSError("no such file")

    made.toolbox.add(Tool.from_function(add))
    made.resources.add(Resource.from_function(lambda: "hello", "file:///greeting.txt", name="greeting"))
    made.resources.add(Resource.from_function(diary, "diary://{day}"))
    made.resources.add(Resource.from_function(broken, "file:///broken.txt"))
    return made


async def test_a_list_has_a_single_page() -> None:
    assert [tool["name"] for tool in (await offers().request("tools/list", {}))["tools"]] == ["add"]
    listed = await offers().request("resources/list", {})
    assert listed["resources"][0] == {"uri": "file:///greeting.txt", "name": "greeting"}
    assert await offers().request("resources/templates/list", {}) == {
        "resourceTemplates": [{"uriTemplate": "diary://{day}", "name": "diary"}]
    }


async def test_without_tools_and_resources_the_lists_are_empty() -> None:
    assert await LocalOffers().request("tools/list", {}) == {"tools": []}
    assert await LocalOffers().request("resources/list", {}) == {"resources": []}


@pytest.mark.parametrize(
    ("returned", "content"),
    [
        ({"content": [{"type": "text", "text": "mine"}]}, [{"type": "text", "text": "mine"}]),
        ({"content": ["a"], "pages": 3}, [{"type": "text", "text": '{"content": ["a"], "pages": 3}'}]),
        ({"content": [{"title": "A"}]}, [{"type": "text", "text": '{"content": [{"title": "A"}]}'}]),
    ],
)
async def test_only_mcp_content_is_sent_unchanged(returned: Any, content: Any) -> None:
    made = LocalOffers()
    made.toolbox.add(Tool.from_function(lambda: returned, name="give"))
    assert (await made.request("tools/call", {"name": "give"}))["content"] == content


async def test_a_resource_is_read_by_its_uri() -> None:
    read = await offers().request("resources/read", {"uri": "file:///greeting.txt"})
    assert read == {"contents": [{"uri": "file:///greeting.txt", "mimeType": "text/plain", "text": "hello"}]}
    read = await offers().request("resources/read", {"uri": "diary://monday"})
    assert read["contents"][0]["text"] == "rain on monday"


@pytest.mark.parametrize(
    ("method", "params", "code", "words"),
    [
        ("prompts/list", {}, METHOD_NOT_FOUND, "'prompts/list' is not offered"),
        ("resources/subscribe", {"uri": "x:"}, METHOD_NOT_FOUND, "not offered"),
        ("tools/list", {"cursor": "2"}, INVALID_PARAMS, "cursor"),
        ("tools/call", {"name": "add", "arguments": {"a": 1}}, INVALID_PARAMS, "b"),
        ("tools/call", {"name": "divide"}, INVALID_PARAMS, "no tool 'divide'"),
        ("resources/read", {}, INVALID_PARAMS, "`uri`"),
        ("resources/read", {"uri": "file:///other"}, RESOURCE_NOT_FOUND, "no resource 'file:///other'"),
        ("resources/read", {"uri": "file:///broken.txt"}, INTERNAL_ERROR, "no such file"),
    ],
)
async def test_each_failed_request_has_its_error_code(
    method: str, params: dict[str, Any], code: int, words: str
) -> None:
    with pytest.raises(Failed, match=words) as refused:
        await offers().request(method, params)
    assert refused.value.code == code


async def test_peers_read_resources_through_the_gateway(joined: Callable[..., Participant]) -> None:
    async with joined("ada") as ada, joined("bob") as bob:

        @ada.resource("notes", mime_type="text/markdown")
        async def notes() -> str:
            """What Ada wrote down."""
            return "# Notes"

        async def ask(method: str, **params: str) -> dict[str, Any]:
            payload = {"method": method, "params": params}
            answer = await bob.ask("mcp/request", payload, to="ada", answer="mcp/response", timeout_seconds=60)
            return dict(answer.body["result"])

        (listed,) = (await ask("resources/list"))["resources"]
        assert listed == {
            "uri": "resource:///notes",
            "name": "notes",
            "description": "What Ada wrote down.",
            "mimeType": "text/markdown",
        }
        (content,) = (await ask("resources/read", uri=listed["uri"]))["contents"]
        assert content == {"uri": "resource:///notes", "mimeType": "text/markdown", "text": "# Notes"}
