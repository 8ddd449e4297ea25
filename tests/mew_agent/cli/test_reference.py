"""The generated reference of the command line."""

import subprocess
import sys

from mew_agent.cli.app.commands import COMMANDS
from mew_agent.cli.app.groups import GroupEntry
from mew_agent.cli.reference import reference


def test_reference_has_a_section_for_every_command() -> None:
    headings = [line.removeprefix("### ") for line in reference().splitlines() if line.startswith("### ")]
    expected = []
    for entries in COMMANDS.values():
        for name, entry in entries.items():
            inner = [f" {one}" for one in entry.commands] if isinstance(entry, GroupEntry) else [""]
            expected += [f"mew {name}{one}" for one in inner]
    assert headings == expected


def test_reference_lists_arguments_options_and_defaults() -> None:
    section = reference().partition("### mew compact\n")[2].partition("\n### ")[0]
    assert "\nmew compact [OPTIONS] PARTICIPANT\n" in section
    assert "| `PARTICIPANT` | Id of the participant. |" in section
    assert "| `--timeout SECONDS` | Time to wait for the answer (default: 120). |" in section


def test_reference_runs_as_a_program() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "mew_agent.cli.reference"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == reference()
