"""What a start prints. Whole starts are seen where they run as processes."""

import os
from pathlib import Path

import pytest

from mew_agent.cli.plan import Plan, Request, make_plan
from mew_agent.cli.up import _announce, _last_words, _Printer, _summarise

SPACE = """
space: {id: review}
participants:
  ada: {}
  coder: {agent: {base_url: rehearsal}, auto_start: true}
  tool: {command: mew, auto_start: true}
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "space.yaml").write_text(SPACE)
    return make_plan(Request(folder=tmp_path), {"PATH": os.environ["PATH"]})


def test_a_summary_says_how_each_participant_fares_and_what_to_type_next(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    _summarise(plan, {"coder"}, {"tool": "exited with code 1: no such command"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"review runs in the background at {plan.launch.address.http}"
    assert "rehearsal model" in lines[1]
    assert lines[2] == "  coder: joined"
    assert lines[3] == "  tool: exited with code 1: no such command (see logs/tool.log)"
    assert lines[4].startswith("dashboard: http://")
    assert lines[6].split(" · ") == ["next:      mew status --watch", "mew compact coder", "mew down"]


def test_one_that_has_not_joined_yet_is_not_called_joined(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    _summarise(plan, set(), {})
    assert "  coder: started, has not joined yet" in capsys.readouterr().out


def test_in_the_foreground_the_way_to_stop_is_said(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    _announce(plan)
    assert "(coder, tool started); Ctrl-C stops everything" in capsys.readouterr().out


def test_each_line_stands_behind_its_programs_name(capsys: pytest.CaptureFixture[str]) -> None:
    show = _Printer(["ada", "reviewer"])
    show("ada", "hello \x1b[31mred")
    show("system:model", "ready")
    assert capsys.readouterr().out == "ada      | hello [31mred\nmodel    | ready\n"


def test_the_last_words_of_a_start_that_failed_are_found(tmp_path: Path) -> None:
    log = tmp_path / "mew.log"
    log.write_text("first\nmew: the gateway exited with code 2\n\n")
    assert _last_words(log) == "the gateway exited with code 2"
    log.write_text("")
    assert "it said nothing" in _last_words(log)
