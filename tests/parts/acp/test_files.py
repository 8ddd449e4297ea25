"""No path leads an ACP agent out of its working folder."""

import os
from pathlib import Path

import pytest

from mew_agent.parts.acp.working_folder import READ, WRITE, ProjectFiles


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with links, a pipe and a token, next to a secret."""
    project, secret = tmp_path / "project", tmp_path / "secret.txt"
    for folder in (project / ".mew", project / "inside"):
        folder.mkdir(parents=True)
    for file in (secret, project / "a.txt", project / ".mew" / "token", project / "inside" / "b.txt"):
        file.write_text("one\ntwo\nthree")
    (project / "link").symlink_to(secret)
    (project / "up").symlink_to(tmp_path)
    (project / "home").symlink_to("inside")
    (project / "dangling").symlink_to(tmp_path / "made.txt")
    (project / "circle").symlink_to("circle")
    os.link(secret, project / "hard")
    os.mkfifo(project / "pipe")
    return project


async def test_paths_inside_are_read_whole_and_by_line(project: Path) -> None:
    files = ProjectFiles(str(project), "read")
    for path in ("a.txt", str(project / "a.txt"), "home/b.txt", "inside/../a.txt"):
        assert await files.request(READ, {"path": path}) == {"content": "one\ntwo\nthree"}
    assert await files.request(READ, {"path": "a.txt", "line": 2, "limit": 1}) == {"content": "two\n"}
    assert (files.allows(READ), files.allows(WRITE), files.allows("terminal/create")) == (True, False, False)


async def test_nothing_outside_is_read_or_written(project: Path) -> None:
    files, outside = ProjectFiles(str(project), "write"), project.parent / "secret.txt"
    paths = ("../secret.txt", str(outside), "link", "up/secret.txt", "hard", ".mew/token", "home/../../secret.txt")
    for path in (*paths, "pipe", "inside", "circle", ".", "", "a\0b", "../made.txt", "dangling", "up/deep/made.txt"):
        for method in (READ, WRITE):
            with pytest.raises((ValueError, OSError)):
                await files.request(method, {"path": path, "content": "stolen"})
    assert outside.read_text() == (project / ".mew" / "token").read_text() == "one\ntwo\nthree"
    assert not list(project.parent.rglob("made.txt"))


async def test_a_write_replaces_the_file_and_makes_its_folders(project: Path) -> None:
    files = ProjectFiles(str(project), "write")
    for path in ("a.txt", "home/deep/er/new.txt"):
        await files.request(WRITE, {"path": path, "content": "new"})
        assert (project / path).read_text() == "new"


async def test_a_folder_that_becomes_a_link_is_not_followed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, real = ProjectFiles(str(project), "read"), os.open
    (project / "inside" / "secret.txt").write_text("harmless")

    def swap_and_open(path: str, *arguments: int, **options: int) -> int:
        if path == "inside":
            (project / "inside").rename(project / "before")
            (project / "inside").symlink_to(project.parent)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", swap_and_open)
    with pytest.raises(OSError, match="inside"):
        await files.request(READ, {"path": "inside/secret.txt"})
