"""Edge cases of `mew up` and `mew down`. tests/interaction runs whole spaces as processes."""

from pathlib import Path

import pytest
from mew_spaces.launch.run_file import run_file_path

from tests.mew_agent.cli.remote.test_identity import running_space
from tests.support.cli import mew


async def test_down_without_a_running_space_succeeds() -> None:
    outcome = await mew("down")
    assert (outcome.code, outcome.out) == (0, "no space is running here\n")


async def test_down_cleans_up_after_an_ended_space(tmp_path: Path) -> None:
    running_space(tmp_path, marks={})
    outcome = await mew("space", "down", "--space-dir", str(tmp_path))
    assert outcome.out == "review: had already ended; cleaned up\n"
    assert not run_file_path(tmp_path / ".mew").exists()


async def test_up_reports_a_mistake_in_the_file_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: s}\nparticipants:\n  coder: {capabilites: []}\n")
    for detach in ((), ("--detach",)):
        outcome = await mew("up", *detach)
        assert outcome.err == (
            "mew: space.yaml:3:11: unknown key 'capabilites' under participants.coder (did you mean 'capabilities'?)\n"
        )
        assert outcome.code == 2
    assert not (tmp_path / ".mew").exists()


@pytest.mark.parametrize(
    ("people", "flags", "said"),
    [
        ("ada: {}", ("--participant", "ada"), "--participant: requires --interactive"),
        ("ada: {}", ("-i", "--participant", "bob"), "--participant: 'bob' is not in space 's' (expected ada)"),
        ("ada: {}\n  bob: {}", ("-i",), "--participant: 2 people in this space: ada, bob. Add --participant ada"),
    ],
)
async def test_person_is_checked_before_the_start(
    tmp_path: Path, people: str, flags: tuple[str, ...], said: str
) -> None:
    (tmp_path / "space.yaml").write_text(f"space: {{id: s}}\nparticipants:\n  {people}\n")
    outcome = await mew("up", *flags)
    assert outcome.err.startswith(f"mew: {said}")
    assert (outcome.code, outcome.out) == (2, "")
    assert not (tmp_path / ".mew").exists()


@pytest.mark.part("terminal", "tokens")
async def test_flags_of_the_typescript_cli_are_accepted(tmp_path: Path) -> None:
    for flag in ("--debug", "--simple", "--no-ui"):
        outcome = await mew("up", flag, "--space-config", "nowhere.yaml")
        assert outcome.err == "mew: nowhere.yaml: no such file\n"
    assert (await mew("down", "--force")).code == 0
    file = tmp_path / "there" / "space.yaml"
    file.parent.mkdir()
    file.write_text("space: {id: s}\nparticipants: {ada: {}}\n")
    assert f"{file.parent}: no space is running here" in (await mew("connect", "-c", str(file))).err
    token = await mew("token", "create", "--participant-id", "ada", "-d", str(file.parent))
    assert token.out == (file.parent / ".mew/tokens/ada.token").read_text()


async def test_commands_of_the_typescript_cli_run_silently_in_reference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEW_COMPAT", "reference")
    assert (await mew("space", "status")).err == (await mew("status")).err
