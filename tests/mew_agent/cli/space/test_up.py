"""What a start prints. tests/interaction runs whole spaces as processes."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from mew_spaces.launch.processes import started_mark
from mew_spaces.launch.run_file import Exit, Pids, RunFile, write_run_file

from mew_agent.cli.space.plan import LaunchPlan, StartOptions, make_launch_plan
from mew_agent.cli.space.up import _last_words, _print_started, _print_summary, _Printer, _recorded_faults

SPACE = """
space: {id: review}
participants:
  ada: {}
  coder: {agent: {base_url: rehearsal}, auto_start: true}
  tool: {command: mew, auto_start: true}
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchPlan:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "space.yaml").write_text(SPACE)
    return make_launch_plan(StartOptions(port=0, folder=tmp_path), {"PATH": os.environ["PATH"]})


def test_summary_lists_participants_and_next_commands(plan: LaunchPlan, capsys: pytest.CaptureFixture[str]) -> None:
    _print_summary(plan, {"coder"}, {"tool": "exited with code 1: no such command"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"review is running in the background at {plan.launch.address.http}"
    assert "rehearsal model" in lines[1]
    assert lines[2] == "  coder: joined"
    assert lines[3] == "  tool: exited with code 1: no such command (see .mew/logs/tool.log)"
    assert lines[4].startswith("dashboard: http://")
    assert lines[5:] == [
        "next:",
        '  mew chat coder "Hello."  talk to coder',
        "  mew dashboard --open     see the space in a browser",
        "  mew down                 stop the space",
    ]


def test_with_two_people_each_printed_command_names_one(
    plan: LaunchPlan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plan.launch.folder / "space.yaml"
    path.write_text(SPACE.replace("  ada: {}", "  ada: {}\n  bob: {}"))
    monkeypatch.chdir(path.parent)
    both = make_launch_plan(StartOptions(port=0), {"PATH": os.environ["PATH"]})
    _print_summary(both, set(), {})
    ada, bob = (line for line in capsys.readouterr().out.splitlines() if line.startswith("dashboard"))
    _print_started(both)
    _, page, act, _, *steps = capsys.readouterr().out.splitlines()
    assert ada.startswith("dashboard of ada: ")
    assert bob.startswith("dashboard of bob: ")
    assert bob.endswith("&space=review&participant=bob")
    # Output that a program keeps has no token.
    assert page == f"dashboard: {both.launch.address.http}/dashboard"
    assert act == (
        "2 people here: add --participant ID to commands, or set `default_participant: ada` under `space` in space.yaml"
    )
    assert [step.split("  ")[1] for step in steps] == [
        'mew chat --participant ada coder "Hello."',
        "mew dashboard --open",
        "mew status --participant ada --watch",
    ]


def test_participant_that_has_not_joined_is_not_called_joined(
    plan: LaunchPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    _print_summary(plan, set(), {})
    assert "  coder: started, has not joined yet" in capsys.readouterr().out


def test_start_names_participants_without_auto_start_and_suggests_only_started_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "space.yaml").write_text(
        "space: {id: review}\nparticipants:\n  ada: {}\n"
        "  lazy: {agent: {base_url: rehearsal}}\n  coder: {agent: {base_url: rehearsal}, auto_start: true}\n"
    )
    plan = make_launch_plan(StartOptions(port=0, folder=tmp_path), {"PATH": os.environ["PATH"]})
    for is_background in (True, False):
        if is_background:
            _print_summary(plan, {"coder"}, {})
        else:
            _print_started(plan)
        lines = capsys.readouterr().out.splitlines()
        assert "  lazy: not started, because space.yaml does not give it `auto_start: true`" in lines
        assert sum("lazy" in line for line in lines) == 1
        assert any('coder "Hello."' in line for line in lines)


def test_printed_commands_quote_a_folder_with_spaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my space"
    folder.mkdir()
    (folder / "space.yaml").write_text("space: {id: review}\nparticipants: {ada: {}}\n")
    _print_summary(make_launch_plan(StartOptions(port=0, folder=folder), {"PATH": os.environ["PATH"]}), set(), {})
    down = capsys.readouterr().out.splitlines()[-1].split("  ")[1]
    assert shlex.split(down)[-2:] == ["--space-dir", str(folder)]


def run_with(tmp_path: Path, *, supervisor_lives: bool, exits: dict[str, Exit]) -> Path:
    """The run file of a space whose participant `tool` has a process that is gone."""
    me = os.getpid()
    mark = started_mark(me) or ""
    supervisor = me if supervisor_lives else 2**22 + 7
    run = RunFile(
        space="review",
        gateway="http://127.0.0.1:1",
        ws="ws://127.0.0.1:1",
        pids=Pids(supervisor=supervisor, participants={"tool": 2**22 + 9}),
        started_at="2026-01-01T00:00:00Z",
        run_id="run-1",
        config="space.yaml",
        marks={str(me): mark},
        exits=exits,
    )
    path = tmp_path / "run.json"
    write_run_file(path, run)
    return path


def test_summary_waits_for_the_recorded_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Exit(code=1, at="2026-01-01T00:00:01Z", detail="no licence")
    path = run_with(tmp_path, supervisor_lives=True, exits={})

    def note(_seconds: float) -> None:
        run_with(tmp_path, supervisor_lives=True, exits={"tool": noted})

    monkeypatch.setattr("mew_agent.cli.space.up.time.sleep", note)
    assert _recorded_faults(path) == {"tool": noted.words}


def test_ended_program_is_reported_without_a_supervisor(tmp_path: Path) -> None:
    path = run_with(tmp_path, supervisor_lives=False, exits={})
    assert _recorded_faults(path) == {"tool": "its program is not running"}


def test_foreground_start_says_how_to_stop(plan: LaunchPlan, capsys: pytest.CaptureFixture[str]) -> None:
    _print_started(plan)
    assert "(coder, tool started); Ctrl-C stops everything" in capsys.readouterr().out


def test_each_line_follows_its_programs_name(capsys: pytest.CaptureFixture[str]) -> None:
    show = _Printer(["ada", "reviewer"])
    show("ada", "hello \x1b[31mred")
    show("system:model", "ready")
    assert capsys.readouterr().out == "ada      | hello [31mred\nmodel    | ready\n"


def test_last_log_line_of_a_failed_start_is_found(tmp_path: Path) -> None:
    log = tmp_path / "mew.log"
    log.write_text("first\nmew: the gateway exited with code 2\n\n")
    assert _last_words(log) == "the gateway exited with code 2"
    log.write_text("")
    assert "its log is empty" in _last_words(log)
