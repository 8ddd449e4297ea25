"""`mew help`: the help of a command, all commands, and the options that many commands have."""

from typing import Annotated

import typer

from mew_agent.cli.app.commands import COMMANDS
from mew_agent.cli.app.exit_codes import exit_code_rows
from mew_agent.cli.app.groups import CommandEntry, OtherName, entries_of, write_tables
from mew_agent.cli.app.options import COMMON_OPTIONS


def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Command, or `all`, `names` or `options`.")
    ] = None,
) -> None:
    """Show the help of a command.

    `all` lists every command, `names` the other names of commands, `options` the options that many commands have.
    """
    topic = " ".join(words or ())
    tables = {"all": _all_commands, "names": _names, "options": _options}
    if topic in tables:
        formatter = context.make_formatter()
        write_tables(formatter, tables[topic]())
        typer.echo(formatter.getvalue().lstrip("\n").rstrip())
        return
    root = context.find_root()
    root.command.main(args=[*(words or ()), "--help"], prog_name=root.info_name, standalone_mode=False)


def _all_commands() -> dict[str, list[tuple[str, str]]]:
    rows = {
        title: [(name, one.summary) for name, one in section.items() if isinstance(one, CommandEntry)]
        for title, section in COMMANDS.items()
    }
    return {title: found for title, found in rows.items() if found}


def _names() -> dict[str, list[tuple[str, str]]]:
    return {"Other names": [(name, _meaning(one)) for name, one in entries_of(COMMANDS, OtherName).items()]}


def _meaning(other: OtherName) -> str:
    more = f", with an argument mew {other.with_argument}" if other.with_argument else ""
    return f"mew {other.target}{more}"


def _options() -> dict[str, list[tuple[str, str]]]:
    return {"Options of many commands": [*COMMON_OPTIONS.items()], "Exit codes": exit_code_rows()}
