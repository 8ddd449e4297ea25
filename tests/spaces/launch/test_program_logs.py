"""The logs of programs: permissions, last lines, and passing lines on."""

from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from mew_spaces.errors import SpacesError
from mew_spaces.launch.program_logs import (
    copy_output,
    cut_large_logs,
    last_line,
    log_path,
    open_log,
    prepare_log_folder,
)


def test_each_run_starts_a_new_private_log(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    prepare_log_folder(folder, ["coder"])
    path = log_path(folder, "coder")
    path.write_text("old\n")
    prepare_log_folder(folder, ["coder", "ada"])
    assert sorted(one.name for one in folder.iterdir()) == [
        ".gitignore",
        "ada.log",
        "coder.log",
        "coder.previous.log",
    ]
    assert (folder / "coder.previous.log").read_text() == "old\n"
    assert path.read_text() == ""
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_large_log_is_cut_while_its_program_writes(tmp_path: Path) -> None:
    prepare_log_folder(tmp_path, ["coder", "quiet"])
    path = log_path(tmp_path, "coder")
    log_path(tmp_path, "quiet").write_text("kept\n")
    with open_log(path) as file:
        file.write(b"x" * 1001)
        cut_large_logs(tmp_path, 1000)
        file.write(b"after\n")
    assert path.read_text() == "after\n"
    previous = tmp_path / "coder.previous.log"
    assert previous.stat().st_size == 1001
    assert previous.stat().st_mode & 0o777 == 0o600
    assert log_path(tmp_path, "quiet").read_text() == "kept\n"


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(SpacesError, match="logs: cannot write logs: File exists"):
        prepare_log_folder(tmp_path / "logs", ["coder"])


def test_a_deleted_log_is_created_again(tmp_path: Path) -> None:
    with open_log(log_path(tmp_path / "logs", "coder")) as file:
        file.write(b"again\n")
    assert last_line(log_path(tmp_path / "logs", "coder")) == "again"


@pytest.mark.parametrize(
    ("text", "last"),
    [("", ""), ("\n \n", ""), ("one\ntwo\n\n", "two"), ("x" * 9000, "x" * 4096), ("\xff no text\n", "\ufffd no text")],
)
def test_last_line_skips_blank_lines(tmp_path: Path, text: str, last: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(text.encode("latin-1"))
    assert last_line(path) == last
    assert last_line(tmp_path / "none") == ""


async def reported(path: Path, *chunks: bytes) -> list[str]:
    """The reports about a program that prints these."""
    lines: list[str] = []
    send, receive = anyio.create_memory_object_stream[bytes](len(chunks))
    for chunk in chunks:
        send.send_nowait(chunk)
    send.close()
    with path.open("ab", buffering=0) as file:
        await copy_output(BufferedByteReceiveStream(receive), file, lines.append)
    receive.close()
    return lines


async def test_output_is_logged_and_passed_on_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert await reported(path, b"one\r\ntw", b"o\n\nla", b"st \xff") == ["one", "two", "", "last \ufffd"]
    assert path.read_bytes() == b"one\r\ntwo\n\nlast \xff"


async def test_a_very_long_line_is_passed_on_in_parts(tmp_path: Path) -> None:
    pieces = await reported(tmp_path / "log", *[b"x" * 50_000] * 4)
    assert sum(map(len, pieces)) == 200_000
    assert len(pieces) > 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
async def test_a_full_disk_gives_one_warning_and_lines_are_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    assert await reported(Path("/dev/full"), b"one\n", b"two\n") == ["one", "two"]
    assert [record.getMessage() for record in caplog.records] == [
        "/dev/full: cannot be written, output is lost: No space left on device"
    ]


def test_links_to_logs_leave_files_of_the_user_alone(tmp_path: Path) -> None:
    logs, links = tmp_path / "state" / "logs", tmp_path / "logs"
    links.mkdir()
    (links / "mine.log").write_text("mine\n")
    (links / "coder.log").touch()
    for _ in range(2):
        prepare_log_folder(logs, ["coder", "mine"], links)
    log_path(logs, "coder").write_text("new\n")
    assert (links / "coder.log").read_text() == "new\n"
    assert (links / "mine.log").read_text() == "mine\n"
