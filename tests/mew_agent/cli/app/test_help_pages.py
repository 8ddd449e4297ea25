"""Help as a stranger reads it: every command in its section, nothing wider than the terminal, no notes on types."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from mew_agent.cli.app.help_pages import SECTIONS
from mew_agent.cli.main import app
from tests.support.cli import mew


def command_lines(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """What is typed for each command, groups among them."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from command_lines(below, *path, name)


ROOT: Any = typer.main.get_command(app)
EVERYTHING = sorted(command_lines(ROOT))


def test_every_command_stands_in_one_section() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(ROOT.commands)


async def test_the_sections_are_those_of_the_readme_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = (await mew("--help")).out
    headings = re.findall(r"^(\S.*):$", shown, re.MULTILINE)
    assert headings == ["Options", *SECTIONS]
    listed = [line for line in shown.partition("Launch:")[2].splitlines() if re.match(r"  [a-z]+  ", line)]
    assert len(listed) == len(ROOT.commands)
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []
    assert shown.rstrip().endswith("130 interrupted.")


@pytest.mark.parametrize("path", EVERYTHING, ids=" ".join)
async def test_no_page_is_wider_than_80_columns_or_speaks_of_types(
    monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = await mew(*path, "--help")
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 80
    assert re.findall(r"<[a-zA-Z][^>]*>|\{[A-Z]+\}|x[<>]=|\bNone\b", shown.out) == []


async def test_a_command_shows_how_it_is_typed_and_what_its_options_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = (await mew("chat", "--help")).out
    assert shown.startswith("Usage: mew chat [OPTIONS] PARTICIPANT TEXT...\n")
    assert re.search(r"^  PARTICIPANT +Whom to talk to\.", shown, re.MULTILINE)
    assert re.search(r"^  --timeout N +Seconds to wait for the answer\.  \[default: 120\]$", shown, re.MULTILINE)
    assert re.search(
        r"^  --reply-tokens N .*\[default: 120\]$", (await mew("model", "serve", "--help")).out, re.MULTILINE
    )
    assert "-l, --log-level debug|info|warning|error" in (await mew("up", "--help")).out
