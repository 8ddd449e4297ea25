"""The file tools and the maze of our own MCP servers, called by the official client."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from mew_agent.parts.mcp.builtin import FileTools, maze_tools, server_of
from tests.support import command_space
from tests.support.cli import mew

gateway, quiet_environment = command_space.gateway, command_space.quiet_environment


GRANTED_BY_TEMPLATES = {
    "list_allowed_directories", "read_file", "read_text_file", "read_multiple_files", "search_files", "list_directory",
    "list_directory_with_sizes", "directory_tree", "get_file_info",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "project"
    (inside / "src").mkdir(parents=True)
    (inside / ".mew").mkdir()
    (inside / ".mew" / "secret").write_text("token")
    (tmp_path / "outside.txt").write_text("private")
    (inside / "src" / "main.py").write_text("one\ntwo\nthree\n")
    (inside / "data.bin").write_bytes(b"\xff\xfe\x00")
    (inside / "link").symlink_to(tmp_path)
    return inside


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[Client]:
    async with Client(server_of("filesystem", "files", FileTools(folder).tools())) as made:
        yield made


async def text_of(client: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
    """Whether a tool failed, and its text."""
    result = await client.call_tool(tool, arguments)
    return result.is_error, getattr(result.content[0], "text", "")


async def test_no_tool_reaches_outside_or_hidden_files(client: Client, folder: Path) -> None:
    attacks: list[tuple[str, str, dict[str, Any]]] = [
        ("read_file", "path", {}),
        ("write_file", "path", {"content": "x"}),
        ("edit_file", "path", {"edits": [{"oldText": "token", "newText": "mine"}]}),
        ("move_file", "source", {"destination": "here"}),
        ("move_file", "destination", {"source": "data.bin"}),
        ("get_file_info", "path", {}),
        ("list_directory", "path", {}),
    ]
    for path in ("../outside.txt", "/etc/hostname", "link/outside.txt", ".mew/secret", "src/../.mew/secret"):
        for tool, key, more in attacks:
            failed, said = await text_of(client, tool, **{key: path}, **more)
            assert failed
            assert "is outside" in said or "is hidden" in said
    assert (folder / ".mew" / "secret").read_text() == "token"
    assert (folder.parent / "outside.txt").read_text() == "private"


async def test_the_tools_that_templates_grant_exist(client: Client) -> None:
    assert {one.name for one in (await client.list_tools()).tools} >= GRANTED_BY_TEMPLATES


async def test_files_are_listed_read_edited_and_moved(client: Client, folder: Path) -> None:
    assert await text_of(client, "list_directory") == (False, "data.bin\nsrc/")
    assert await text_of(client, "search_files", pattern="*.py") == (False, str(folder / "src" / "main.py"))
    tree = json.loads((await text_of(client, "directory_tree"))[1])
    assert tree[1]["children"] == [{"name": "main.py", "type": "file"}]
    absolute = str(folder / "src" / "main.py")
    assert await text_of(client, "read_text_file", path=absolute, tail=1) == (False, "three\n")
    edits = [{"oldText": "two", "newText": "2"}, {"oldText": "2\nthree", "newText": "2\n3"}]
    assert await text_of(client, "edit_file", path=absolute, edits=edits, dryRun=True) == (False, "one\n2\n3\n")
    await text_of(client, "edit_file", path="src/main.py", edits=edits)
    await text_of(client, "move_file", source="src/main.py", destination="src/other.py")
    assert (folder / "src" / "other.py").read_text() == "one\n2\n3\n"
    failed, said = await text_of(client, "read_multiple_files", paths=["src/other.py", "data.bin", "gone"])
    assert not failed
    assert "data.bin is not a text file" in said
    assert (await text_of(client, "edit_file", path="src/other.py", edits=[{"oldText": "x", "newText": ""}]))[0]


async def test_the_maze_is_played_to_the_next_board() -> None:
    way = [*["right"] * 2, *["down"] * 2, *["left"] * 2, *["down"] * 2, *["right"] * 4, *["up"] * 4, *["right"] * 2]
    async with Client(server_of("cat-maze", "maze", maze_tools())) as client:
        assert "board 1 of 3, 0 steps" in (await text_of(client, "view"))[1]
        for step in [*way, *["down"] * 3]:
            assert "The cat went" in (await text_of(client, step))[1]
        assert "The cat eats the fish!" in (await text_of(client, "down"))[1]
        assert "board 2 of 3" in (await text_of(client, "down"))[1]
        assert "board 1 of 3, 0 steps" in (await text_of(client, "restart"))[1]


async def test_a_missing_folder_is_refused() -> None:
    assert (await mew("mcp", "filesystem", "nowhere")).err == "mew: FOLDER: no folder 'nowhere'\n"
