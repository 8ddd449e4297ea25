"""The command line speaks one language: options mean the same, are explained, and offer JSON, in every command."""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import pytest

from mew_agent.cli.app.options import SHORT_OPTIONS
from mew_agent.cli.main import command_line

RUNS_UNTIL_STOPPED = {
    "acp start",
    "agent run",
    "bridge start",
    "gateway start",
    "help",
    "run",
    "serve a2a",
    "serve acp",
    "serve mcp",
    "serve model",
    "serve openai",
}
"""Commands that report nothing of their own: they run a program, or print what is JSON already."""

OLD_SHORT_OPTIONS = {
    "-c": "--capabilities",
    "-i": "--participant",
    "-m": "--mcp-command",
    "-n": "--entries",
    "-o": "--format",
    "-p": "--participant",
    "-s": "--config",
}
"""Hidden spellings of the TypeScript CLI and of older releases. Add none."""


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    return dict(_commands())


def test_short_option_means_the_same_in_every_command(commands: dict[str, Any]) -> None:
    wrong, used = [], set()
    for path, option in _options(commands):
        long = next(name for name in option.opts if name.startswith("--"))
        for short in (name for name in option.opts if not name.startswith("--")):
            used.add(short)
            if long not in (SHORT_OPTIONS.get(short), OLD_SHORT_OPTIONS.get(short)):
                wrong.append(f"{path}: {short} is {long}, elsewhere {SHORT_OPTIONS.get(short)}")
    assert not wrong
    assert used | {"-h"} == set(SHORT_OPTIONS), "SHORT_OPTIONS lists an option that no command has, or lacks one"


def test_command_declares_each_option_once(commands: dict[str, Any]) -> None:
    for path, command in commands.items():
        names = [name for one in command.params for name in (*one.opts, *one.secondary_opts)]
        assert len(names) == len(set(names)), path


def test_participant_is_named_by_one_option(commands: dict[str, Any]) -> None:
    shown = {next(name for name in one.opts if name.startswith("--")) for _, one in _options(commands)}
    assert not shown & {"--id", "--participant-id", "--agent", "--as", "--space-config"}


def test_command_that_reports_something_offers_json(commands: dict[str, Any]) -> None:
    without = {path for path, command in commands.items() if not any("--json" in one.opts for one in command.params)}
    assert without == RUNS_UNTIL_STOPPED


def test_help_lists_at_most_24_commands() -> None:
    assert sum(map(len, command_line().listed().values())) <= 24


def test_other_name_means_a_command() -> None:
    root = command_line()
    for name, other in root.other_names.items():
        for target in filter(None, (other.target, other.with_argument)):
            command = root
            for word in takewhile(lambda one: not one.startswith("-"), target.split()):
                command = command.get_command(None, word)
            assert command is not None, name


def test_commands_and_options_stay_few(commands: dict[str, Any]) -> None:
    options = [one for command in commands.values() for one in command.params if one.param_type_name == "option"]
    shown = [one for one in options if not _is_hidden(one)]
    assert len(commands) <= 53, "a new command is an option of another one, or replaces one"
    assert len(shown) <= 420
    assert len(options) - len(shown) <= 10, "former options of 0.1.0, and four that programs use; add none"


def test_option_and_argument_have_help(commands: dict[str, Any]) -> None:
    shown = [(path, one) for path, command in commands.items() for one in command.params if not _is_hidden(one)]
    assert [f"{path}: {one.name}" for path, one in shown if not str(one.help or "").endswith(".")] == []


def _commands() -> Iterator[tuple[str, Any]]:
    root = command_line()
    yield from ((path, root.command_at(path)) for path in root.paths)


def _options(commands: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, command in commands.items():
        yield from ((path, one) for one in command.params if one.param_type_name == "option" and not _is_hidden(one))


def _is_hidden(parameter: Any) -> bool:
    return bool(getattr(parameter, "hidden", False))
