"""`mew doctor` in a folder whose space needs programs that are there, and programs that are not."""

import importlib.metadata
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


@pytest.mark.part("acp")
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
    program.write_text(f"#!{sys.executable}\nprint('@agentclientprotocol/codex-acp 12.16.0 (stable)')\n")
    program.chmod(0o755)
    outcome = await mew("doctor", "--json")
    assert outcome.code == 0
    found = {one["name"]: one for one in json.loads(outcome.out)}
    assert (found["codex"]["version"], found["codex"]["needed_by"]) == ("12.16.0", ["helper"])
    assert (found["qwen"]["version"], found["qwen"]["needed_by"]) == (None, [])


def put(folder: Path, name: str, lines: str) -> None:
    program = folder / name
    program.write_text(f"#!{sys.executable}\n{lines}\n")
    program.chmod(0o755)


@pytest.mark.part("acp")
async def test_doctor_finds_a_program_under_the_name_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "space.yaml").write_text(SPACE.replace("{command: PROGRAM}", "goose"))
    put(tmp_path, "goose-binary-linux-x64", "print(' 1.52.0')")
    outcome = await mew("doctor", "--json")
    found = {one["name"]: one for one in json.loads(outcome.out)}
    assert (found["goose"]["version"], found["goose"]["needed_by"], outcome.code) == ("1.52.0", ["helper"], 0)


@pytest.mark.part("acp")
async def test_doctor_does_not_call_a_broken_program_present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "space.yaml").write_text(SPACE.replace("{command: PROGRAM}", "opencode"))
    put(tmp_path, "opencode", "raise SystemExit('the postinstall script was not run')")
    outcome = await mew("doctor")
    assert outcome.code == 1
    assert "opencode does not run: --version ended with code 1: the postinstall script was not run" in outcome.err
    assert "does not run" in outcome.out
    (tmp_path / "space.yaml").write_text(SPACE.replace("PROGRAM", "mine"))
    put(tmp_path, "mine", "raise SystemExit('no such option')")  # its own, which may lack the option
    assert (await mew("doctor")).code == 0
    (tmp_path / "mine").write_text("#!/no/such/interpreter\n")
    assert "mine does not run: No such file or directory" in (await mew("doctor")).err


async def test_doctor_shows_each_library_with_its_version() -> None:
    found = {one["name"]: one["version"] for one in json.loads((await mew("doctor", "--json")).out)}
    for extra, package in (("acp", "agent-client-protocol"), ("mcp", "mcp"), ("scale", "nats-py")):
        assert found[extra] == f"{package} {importlib.metadata.version(package)}"


@pytest.mark.part("acp")
async def test_doctor_shows_modes_in_which_agents_do_not_ask(tmp_path: Path) -> None:
    agent = "{agent: claude, mode: MODE}"
    for mode, says in (("auto", "acts without asking"), ("default", "asks")):
        (tmp_path / "space.yaml").write_text(SPACE.replace("{command: PROGRAM}", agent.replace("MODE", mode)))
        found = [one for one in json.loads((await mew("doctor", "--json")).out) if one["kind"] == "mode"]
        assert [(one["name"], one["version"]) for one in found] == [("helper", f"{mode}: {says}")]


async def test_doctor_needs_nothing_outside_of_a_space() -> None:
    outcome = await mew("doctor")
    assert outcome.code == 0
    assert "acp" in outcome.out


async def test_broken_space_does_not_hide_installed_programs(tmp_path: Path) -> None:
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
