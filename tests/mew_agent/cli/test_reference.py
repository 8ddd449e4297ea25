"""The generated reference of the command line."""

from pathlib import Path

import pytest

from mew_agent.cli.main import command_line

GENERATOR = Path(__file__).parents[3] / "docs" / "generator"


@pytest.fixture(scope="module")
def page() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(GENERATOR)
        import command_page
    return command_page.command_page()


def test_reference_has_a_section_for_every_command(page: str) -> None:
    headings = [line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")]
    assert headings == [f"mew {path}" for path in command_line().paths]


def test_reference_lists_arguments_options_and_defaults(page: str) -> None:
    section = page.partition("### mew compact\n")[2].partition("\n### ")[0]
    assert "\nmew compact [OPTIONS] PARTICIPANT\n" in section
    assert "| `PARTICIPANT` | Id of the participant. |" in section
    assert "| `--timeout SECONDS` | Time to wait for the answer (default: 120). |" in section
