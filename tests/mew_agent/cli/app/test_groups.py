"""Help pages: every command has one, its summary is the same everywhere, and nothing is wider than the terminal."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.main import command_line
from tests.support.cli import mew

ROOT: Any = command_line()


def all_commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group with what is typed for it."""
    yield path, command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from all_commands(command.get_command(None, name), *path, name)


ALL = dict(sorted(all_commands(ROOT)))


async def test_help_shows_every_section_and_no_summary_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = (await mew("--help")).out
    headings = re.findall(r"^(\S.*):$", shown, re.MULTILINE)
    assert headings == ["Options", *ROOT.listed(), "Exit codes"]
    lines = shown.partition("Start and stop:")[2].splitlines()
    listed = [line for line in lines if re.match(r"  [a-z][a-z0-9]*  ", line)]
    assert len(listed) == sum(map(len, ROOT.listed().values()))
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []
    assert all(re.search(rf"^  {int(code)} +{code.meaning}$", shown, re.MULTILINE) for code in ExitCode)


@pytest.mark.parametrize("path", [path for path in ALL if hasattr(ALL[path], "entries")], ids=" ".join)
def test_lists_show_the_first_line_of_a_commands_help(path: tuple[str, ...]) -> None:
    for name, entry in ALL[path].entries.items():
        assert ALL[*path, name].help.partition("\n")[0] == entry.summary


async def test_help_pages_fit_80_columns_and_name_no_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for path in ALL:
        shown = await mew(*path, "--help")
        assert shown.code == 0, path
        assert max(map(len, shown.out.splitlines())) <= 80, path
        assert re.findall(r"<[a-zA-Z][^>]*>|\{[A-Z]+\}|x[<>]=|\bNone\b", shown.out) == [], path


def test_every_option_with_a_value_names_the_value() -> None:
    for path, command in ALL.items():
        options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
        assert [one.name for one in options if not one.is_flag and not one.metavar] == [], path


async def test_help_page_shows_arguments_options_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = (await mew("chat", "--help")).out
    assert shown.startswith("Usage: mew chat [OPTIONS] PARTICIPANT TEXT...\n")
    assert re.search(r"^  PARTICIPANT +Id of the participant\.$", shown, re.MULTILINE)
    assert re.search(r"^  --timeout SECONDS +Time to wait for the answer \(default: 120\)\.$", shown, re.MULTILINE)
    assert "(default: oldest)" in " ".join((await mew("forget", "--help")).out.split())
    assert "\n  --drain " in (await mew("down", "-h")).out


async def test_misspelt_command_gets_a_suggestion() -> None:
    outcome = await mew("statsu")
    assert outcome.err == "mew: No such command 'statsu' (did you mean 'status'? see `mew --help`)\n"
    assert (outcome.code, outcome.out) == (2, "")


async def test_a_command_unlike_all_others_gets_no_suggestion() -> None:
    assert (await mew("bogus")).err == "mew: No such command 'bogus' (see `mew --help`)\n"


async def test_error_in_the_options_names_the_help_of_its_command() -> None:
    short = "Option '-d' (--space-dir) requires an argument (see `mew status --help`)"
    assert (await mew("status", "-d")).err == f"mew: {short}\n"
    assert (await mew("agent", "-z")).err == "mew: No such option: -z (see `mew agent --help`)\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        pytest.param("context compact", "'mew compact'", marks=pytest.mark.part("archive")),
        pytest.param("context statsu", "'mew status'", marks=pytest.mark.part("archive")),
        pytest.param("context hstory", "'history'", marks=pytest.mark.part("archive", "policies")),
        pytest.param("a2a", "'mew serve a2a'", marks=pytest.mark.part("a2a")),
        pytest.param("simulate", "'mew context simulate'", marks=pytest.mark.part("policies")),
        pytest.param("client", "'mew connect --json'", marks=pytest.mark.part("terminal")),
    ],
)
async def test_misplaced_command_names_its_place(typed: str, meant: str) -> None:
    outcome = await mew(*typed.split())
    assert f"(did you mean {meant}? see `mew" in outcome.err
    assert outcome.code == ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("space status", "status"),
        ("ps", "status"),
        ("stop", "down"),
        ("stop coder", "shutdown coder"),
        pytest.param("attach coder", "connect coder", marks=pytest.mark.part("terminal")),
    ],
)
async def test_other_name_runs_the_command_and_says_it(typed: str, command: str) -> None:
    outcome = await mew(*typed.split())
    note = f"mew: `mew {typed.removesuffix(' coder')}` is `mew {command.removesuffix(' coder')}` here\n"
    assert outcome.err == note + (await mew(*command.split())).err


async def test_hidden_option_of_the_typescript_cli_is_read() -> None:
    assert "no-such" in (await mew("init", "--template", "no-such")).err
    refused = (await mew("compact", "coder", "--timeout", "x")).err
    assert refused.startswith("mew: Invalid value for '--timeout': must be a number, not 'x' (")


async def test_quiet_command_prints_errors_only(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: s}\nparticipants:\n  ada: {}\n")
    loud = await mew("agent", "add", "eve", "--person", "--capabilities", '["chta"]')
    quiet = await mew("agent", "add", "bob", "--person", "--capabilities", '["chta"]', "-q")
    assert "no kind 'chta'" in loud.err
    assert (quiet.code, quiet.err) == (0, "")
    assert (await mew("agent", "add", "bob", "--person", "-q")).err.startswith("mew: ")


async def test_short_option_d_without_a_folder_detaches() -> None:
    assert "no space.yaml here" in (await mew("up", "-d")).err
    assert "nowhere" in (await mew("up", "-d", "nowhere")).err


async def test_help_command_explains_any_command() -> None:
    assert (await mew("help")).out == (await mew("--help")).out
    assert (await mew("help", "agent", "add")).out == (await mew("agent", "add", "--help")).out
    listed = (await mew("help", "all")).out
    assert [path for path in ROOT.paths if f"\n  {path} " not in listed] == []
    assert "mew status" in (await mew("help", "names")).out
    assert "--space-dir, -d FOLDER" in (await mew("help", "options")).out
