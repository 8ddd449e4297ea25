"""`mew dashboard` and `mew logs`."""

from pathlib import Path

import pytest

from mew_agent.cli.space.running import _LogReader
from tests.mew_agent.cli.remote.test_identity import running_space
from tests.support.cli import mew


async def test_each_of_two_people_gets_a_dashboard(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: review}\nparticipants: {ada: {}, bob: {}}")
    running_space(tmp_path, config=str(tmp_path / "space.yaml"), person=None)
    base = "http://127.0.0.1:8080/dashboard#token=file-token-of"
    both = await mew("dashboard")
    assert both.out.splitlines() == [f"{n}: {base}-{n}&space=review&participant={n}" for n in ("ada", "bob")]
    assert (await mew("dashboard", "--participant", "bob")).out == f"{base}-bob&space=review&participant=bob\n"
    assert "2 people in this space: ada, bob. Add --participant ada, or set" in (await mew("status")).err


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = running_space(tmp_path).parent / "logs"
    folder.mkdir()
    (folder / "coder.log").write_text("".join(f"line {number}\n" for number in range(20_000)))
    (folder / "gateway.log").write_text("listening \x1b[31m\n")
    (folder / "coder.previous.log").write_text("old\n")
    return folder


async def test_the_last_lines_of_each_log_are_printed(logs: Path) -> None:
    outcome = await mew("logs", "--last", "2")
    assert outcome.out.splitlines() == [
        "coder   | line 19998",
        "coder   | line 19999",
        "gateway | listening [31m",
    ]
    assert (await mew("logs", "coder", "-n", "1")).out == "line 19999\n"
    assert (await mew("logs", "coder", "-n", "1", "--json")).out == '[{"name":"coder","line":"line 19999"}]\n'
    (logs / "tool.log").touch()
    empty = await mew("logs", "tool")
    assert (empty.code, empty.out, empty.err) == (0, "", "(tool has written nothing)\n")
    wrong = await mew("logs", "codr")
    assert "no log of 'codr' (did you mean 'coder'?)" in wrong.err
    assert wrong.code == 2


def test_a_followed_log_continues_where_it_is_cut(logs: Path) -> None:
    path = logs / "coder.log"
    reader = _LogReader(path, 1)
    assert list(reader.new_lines()) == ["line 19999"]
    with path.open("a") as file:
        file.write("half ")
    assert list(reader.new_lines()) == []
    with path.open("a") as file:
        file.write("a line\n")
    assert list(reader.new_lines()) == ["half a line"]
    path.write_text("cut\n")
    assert list(reader.new_lines()) == ["cut"]
    path.unlink()
    assert list(reader.new_lines()) == []
