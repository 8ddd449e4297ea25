"""`mew doctor` in a folder whose space needs programs that are there, and programs that are not."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.cli import mew

SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  helper:
    auto_start: true
    acp: {command: PROGRAM}
"""


async def test_doctor_names_what_a_space_lacks_and_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    (tmp_path / "space.yaml").write_text(SPACE.replace("{command: PROGRAM}", "codex"))
    outcome = await mew("doctor")
    assert outcome.code == 1
    assert "helper: needs codex; install it with: npm install --global @agentclientprotocol/codex-acp" in outcome.err
    program = programs / "codex-acp"
    program.write_text(f"#!{sys.executable}\nprint('codex-acp 9.1')\n")
    program.chmod(0o755)
    outcome = await mew("doctor", "--json")
    assert outcome.code == 0
    found = {one["name"]: one for one in json.loads(outcome.out)}
    assert (found["codex"]["version"], found["codex"]["needed_by"]) == ("codex-acp 9.1", ["helper"])
    assert (found["qwen"]["version"], found["qwen"]["needed_by"]) == (None, [])


async def test_doctor_needs_nothing_outside_of_a_space() -> None:
    outcome = await mew("doctor")
    assert outcome.code == 0
    assert "acp" in outcome.out


async def test_broken_space_does_not_hide_what_is_installed(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("{{")
    outcome = await mew("doctor")
    assert outcome.err.startswith("mew: space.yaml:1:3: invalid YAML")
    assert outcome.err.endswith("; what this space needs is not checked\n")
    assert outcome.out.startswith("WHAT")


async def test_doctor_shows_the_mode_of_the_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: review}\n")

    async def mode() -> str:
        found = json.loads((await mew("doctor", "--json")).out)
        return next(str(one["version"]) for one in found if one["name"] == "compat")

    assert await mode() == "specification"
    monkeypatch.setenv("MEW_COMPAT", "reference")
    assert await mode() == "reference"
