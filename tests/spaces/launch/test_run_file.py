"""The run file: found from any folder of the space, private, and checked against running processes."""

import json
import os
from pathlib import Path

import pytest
from mew_spaces.errors import SpacesError
from mew_spaces.launch.processes import started_mark
from mew_spaces.launch.run_file import (
    Exit,
    Pids,
    RunFile,
    claim_run_file,
    find_run_file,
    pop_restart_requests,
    read_run_file,
    remove_run_file,
    request_restart,
    run_file_path,
    write_run_file,
)


def run_of(**more: object) -> RunFile:
    values = {"space": "review", "gateway": "http://127.0.0.1:1", "ws": "ws://127.0.0.1:1", "started_at": "now"}
    return RunFile.model_validate({**values, **more})


def test_a_run_file_reads_back_as_written(tmp_path: Path) -> None:
    path = run_file_path(tmp_path / ".mew")
    run = run_of(pids={"gateway": 7, "participants": {"coder": 8}}, marks={"7": "a"})
    write_run_file(path, run)
    assert read_run_file(path) == run
    assert path.stat().st_mode & 0o077 == 0
    assert sorted(one.name for one in path.parent.iterdir()) == ["pids.json", "run.json"]
    remove_run_file(path)
    assert not any(path.parent.iterdir())


def test_the_typescript_cli_finds_a_space_by_its_pids_file(tmp_path: Path) -> None:
    run = run_of(name="Review", ws="ws://127.0.0.1:8123", pids={"gateway": 7, "participants": {"coder": 8}})
    write_run_file(run_file_path(tmp_path / ".mew"), run)
    assert json.loads((tmp_path / ".mew" / "pids.json").read_text()) == {
        "spaceId": "review",
        "spaceName": "Review",
        "spaceDir": str(tmp_path.resolve()),
        "port": 8123,
        "gateway": 7,
        "agents": {"coder": 8},
        "clients": {},
    }


def test_a_run_file_is_found_from_a_subfolder(tmp_path: Path) -> None:
    path = run_file_path(tmp_path / ".mew")
    write_run_file(path, run_of())
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    assert find_run_file(below) == path.resolve()


def test_the_nearest_run_file_is_found(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    for folder in (tmp_path, inner):
        write_run_file(run_file_path(folder / ".mew"), run_of())
    assert find_run_file(inner) == run_file_path(inner / ".mew").resolve()


def test_a_missing_run_file_is_none(tmp_path: Path) -> None:
    assert read_run_file(tmp_path / "run.json") is None


@pytest.mark.parametrize("text", ["", "[]", '{"space": 1}', "\x00"])
def test_an_invalid_run_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(SpacesError, match=r"run\.json"):
        read_run_file(path)


def test_a_recorded_id_counts_only_with_its_start_time() -> None:
    mark = started_mark(os.getpid())
    assert mark
    assert run_of(pids={"gateway": os.getpid()}, marks={str(os.getpid()): mark}).is_alive
    assert not run_of(pids={"gateway": os.getpid()}, marks={str(os.getpid()): "earlier"}).is_alive
    assert not run_of(pids={"gateway": os.getpid()}).is_alive


def test_faults_say_how_programs_ended() -> None:
    run = run_of(
        pids=Pids(participants={"a": 1, "b": 2, "c": 3, "d": os.getpid()}),
        marks={str(os.getpid()): started_mark(os.getpid())},
        exits={"a": Exit(code=2, at="now", detail="no key"), "b": Exit(code=-9, at="now")},
    )
    assert run.faults() == {
        "a": "exited with code 2: no key",
        "b": "was ended by signal 9",
        "c": "its program is not running",
    }


def test_a_program_that_exited_with_code_0_has_no_fault() -> None:
    run = run_of(pids=Pids(participants={"a": 1}), exits={"a": Exit(code=0, at="now")})
    assert run.faults() == {}
    assert run.ended() == {"a": "exited with code 0"}


def test_requests_to_restart_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for name in ("coder", "files", "coder"):
        request_restart(path, name)
    assert pop_restart_requests(path) == ["coder", "files"]
    assert pop_restart_requests(path) == []


def test_requests_to_restart_that_cannot_be_taken_are_an_error_of_the_space(tmp_path: Path) -> None:
    request_restart(run_file_path(tmp_path), "coder")
    (tmp_path / "restart.read" / "in the way").mkdir(parents=True)
    with pytest.raises(SpacesError, match=r"restart\.txt: cannot be written"):
        pop_restart_requests(run_file_path(tmp_path))


def test_only_one_of_two_concurrent_starts_succeeds(tmp_path: Path) -> None:
    path = run_file_path(tmp_path / ".mew")
    claim_run_file(path, run_of(run_id="first"))
    with pytest.raises(SpacesError, match="another process is starting this space"):
        claim_run_file(path, run_of(run_id="second"))
    found = read_run_file(path)
    assert found is not None
    assert found.run_id == "first"
    assert [one.name for one in path.parent.iterdir()] == ["run.json"]


def test_a_restarted_program_replaces_its_earlier_record() -> None:
    run = run_of(pids={"supervisor": 1, "gateway": 2}, marks={"1": "a", "2": "b"})
    started = run.with_started("participant", "coder", 8, "first", [Path("fifo")])
    ended = started.with_ended("coder", Exit(code=1, at="now"))
    assert ended.faults() == {"coder": "exited with code 1"}
    again = ended.with_started("participant", "coder", 9, "second", [Path("fifo")])
    assert again.pids.participants == {"coder": 9}
    assert again.marks == {"1": "a", "2": "b", "9": "second"}
    assert again.exits == {}
    assert again.fifos == ("fifo",)
    assert again.with_started("model", "model", 7, "m").processes == {2: "b", 7: "m", 9: "second"}


def test_an_unwritable_run_file_is_named(tmp_path: Path) -> None:
    (tmp_path / ".mew").touch()
    path = run_file_path(tmp_path / ".mew")
    for write in (write_run_file, claim_run_file):
        with pytest.raises(SpacesError, match=r"run\.json: cannot be written: "):
            write(path, run_of())
