"""Functions as resources."""

import base64
from typing import Any

import pytest

from mew_agent.tools.resources import MAX_URI_CHARS, NoSuchResource, Resource, Resources


async def read(resource: Resource, uri: str) -> dict[str, Any]:
    box = Resources()
    box.add(resource)
    (content,) = (await box.read(uri))["contents"]
    return dict(content)


async def test_text_bytes_and_values_have_different_content() -> None:
    assert await read(Resource.from_function(lambda: "a", "x:a"), "x:a") == {
        "uri": "x:a",
        "mimeType": "text/plain",
        "text": "a",
    }
    blob = await read(Resource.from_function(lambda: b"\x00\xff", "x:b"), "x:b")
    assert base64.b64decode(blob["blob"]) == b"\x00\xff"
    assert blob["mimeType"] == "application/octet-stream"
    value = await read(Resource.from_function(lambda: {"n": [1, 2]}, "x:c"), "x:c")
    assert (value["mimeType"], value["text"]) == ("application/json", '{"n":[1,2]}')


async def test_a_given_mime_type_is_used() -> None:
    content = await read(Resource.from_function(lambda: b"GIF89a", "x:g", mime_type="image/gif"), "x:g")
    assert content["mimeType"] == "image/gif"


async def test_a_lone_surrogate_is_replaced() -> None:
    assert (await read(Resource.from_function(lambda: "a\ud800", "x:a"), "x:a"))["text"] == "a?"


async def test_a_coroutine_function_is_awaited() -> None:
    async def page() -> str:
        return "late"

    assert (await read(Resource.from_function(page, "x:a"), "x:a"))["text"] == "late"


async def test_placeholders_of_a_uri_become_decoded_arguments() -> None:
    async def line(book: str, number: str) -> str:
        """A line of a book."""
        return f"{book}:{number}"

    resource = Resource.from_function(line, "books://{book}/{number}")
    assert resource.is_template
    assert resource.listed() == {
        "uriTemplate": "books://{book}/{number}",
        "name": "line",
        "description": "A line of a book.",
    }
    content = await read(resource, "books://two%20words/7")
    assert (content["uri"], content["text"]) == ("books://two%20words/7", "two words:7")


@pytest.mark.parametrize("uri", ["books://a", "books://a/b/c", "books://a/", "Books://a/b", "books://a/b?x"])
async def test_a_uri_that_matches_no_template_is_not_found(uri: str) -> None:
    resource = Resource.from_function(lambda book, number: "", "books://{book}/{number}", name="line")
    with pytest.raises(NoSuchResource, match="no resource"):
        await read(resource, uri)


async def test_an_exact_uri_wins_over_a_template() -> None:
    box = Resources()
    box.add(Resource.from_function(lambda day: "any", "diary://{day}", name="any"))
    box.add(Resource.from_function(lambda: "today", "diary://today", name="today"))
    assert (await box.read("diary://today"))["contents"][0]["text"] == "today"
    assert (await box.read("diary://monday"))["contents"][0]["text"] == "any"
    assert [one["name"] for one in box.listed()] == ["today"]
    assert [one["name"] for one in box.templates()] == ["any"]


def test_a_plain_name_becomes_a_resource_uri() -> None:
    assert Resource.from_function(lambda: "", "my notes").uri == "resource:///my%20notes"
    assert Resource.from_function(lambda: "", "my notes").name == "my notes"


def test_placeholders_and_arguments_must_match() -> None:
    with pytest.raises(TypeError, match=r"its placeholders are \['day'\], the arguments of its function \['date'\]"):
        Resource.from_function(lambda date: "", "diary://{day}")


def test_a_second_resource_with_the_same_uri_is_refused() -> None:
    box = Resources()
    box.add(Resource.from_function(lambda: "", "x:a"))
    with pytest.raises(ValueError, match="resource 'x:a' already exists"):
        box.add(Resource.from_function(lambda: "", "x:a"))


def test_an_overlong_uri_matches_no_template() -> None:
    resource = Resource.from_function(lambda first, second: first + second, "notes://{first}-{second}")
    assert resource.arguments_in("notes://a-b") == {"first": "a", "second": "b"}
    assert resource.arguments_in(f"notes://{'a-' * MAX_URI_CHARS}b") is None
