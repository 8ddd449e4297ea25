"""Writes the reference of the command line as Markdown.

Everything comes from the commands themselves, so the page always agrees with `--help`.
"""

import inspect
from collections.abc import Iterator
from typing import Any

from mew_agent.cli.app.exit_codes import exit_code_rows
from mew_agent.cli.app.groups import parameter_rows
from mew_agent.cli.app.options import COMMON_OPTIONS, SHORT_OPTIONS, common_options
from mew_agent.cli.main import command_line


def command_page() -> str:
    """The page `reference/cli.md`: a section for each heading of `mew --help`, with its commands and their options."""
    return "\n".join(_page()).rstrip() + "\n"


def _page() -> Iterator[str]:
    yield "# Commands"
    yield ""
    yield "This page is generated from the commands. `mew COMMAND --help` shows the same text."
    yield ""
    yield "## Exit codes"
    yield ""
    yield "| Code | Meaning |"
    yield "|---|---|"
    yield from (f"| {code} | {meaning} |" for code, meaning in exit_code_rows())
    yield ""
    yield "## Options of many commands"
    yield ""
    yield "The sections of the commands name these options and do not repeat what they mean."
    yield ""
    yield "| Option | Meaning |"
    yield "|---|---|"
    yield from (f"| `{usage}` | {_cell(text)} |" for usage, text in COMMON_OPTIONS.items())
    yield ""
    yield "## Short options"
    yield ""
    yield "A short option means the same in every command that has it."
    yield ""
    yield "| Short | Long |"
    yield "|---|---|"
    yield from (f"| `{short}` | `{long}` |" for short, long in SHORT_OPTIONS.items())
    yield ""
    root = command_line()
    for title in root.listed(everything=True):
        yield f"## {title}"
        yield ""
        for path in (one for one in root.sections[title] if one in root.paths):
            yield from _command(f"mew {path}", root.command_at(path))
    yield "## Other names"
    yield ""
    yield "Older names of commands, and names that other programs use. They work and print the name to use."
    yield ""
    yield "| Typed | Runs |"
    yield "|---|---|"
    for typed, other in root.other_names.items():
        more = f"; with an argument `mew {other.with_argument}`" if other.with_argument else ""
        yield f"| `mew {typed}` | `mew {other.target}`{more} |"


def _command(path: str, command: Any) -> Iterator[str]:
    yield f"### {path}"
    yield ""
    yield "```text"
    yield f"{path} {' '.join(command.collect_usage_pieces(None))}"
    yield "```"
    yield ""
    yield inspect.cleandoc(command.help)
    yield ""
    for title, rows in parameter_rows(command.params).items():
        yield f"| {title.removesuffix('s')} | Meaning |"
        yield "|---|---|"
        yield from (f"| `{_cell(name)}` | {_cell(text)} |" for name, text in rows)
        yield ""
    yield f"Also {', '.join(f'`{name}`' for name in common_options(command.params))}."
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
