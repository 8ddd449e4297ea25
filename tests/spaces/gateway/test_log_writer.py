"""Lines reach their files in order, whatever happens to the files, and never more wait than may."""

import logging
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from mew_spaces.gateway.log_writer import LogFile, LogWriter


def line(text: str) -> bytes:
    return f"{text}\n".encode()


def written(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_lines_are_written_in_order_before_the_writer_closes(tmp_path: Path) -> None:
    writer, one, other = LogWriter(), LogFile(tmp_path / "one"), LogFile(tmp_path / "other")
    for number in range(500):
        assert writer.put(one if number % 2 else other, partial(line, str(number)), 8)
    writer.close()
    assert written(one.path) == [str(number) for number in range(500) if number % 2]
    assert written(other.path) == [str(number) for number in range(500) if not number % 2]
    assert not writer.put(one, lambda: line("late"), 8)
    writer.close()


def test_a_file_may_be_truncated_or_removed_while_in_use(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log")
    file.append(b"before\n")
    file.path.write_text("")
    file.append(b"after\n")
    assert written(file.path) == ["after"]
    file.path.unlink()
    file.append(b"again\n")
    assert written(file.path) == ["again"]
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_removed_folder_is_created_again(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "logs" / "deep" / "log", max_bytes=10, kept=1)
    for number in range(3):
        file.append(line(f"line {number}"))
        shutil.rmtree(tmp_path / "logs")
    file.append(b"again\n")
    assert written(file.path) == ["again"]


@contextmanager
def disk_with_room_for(size: int) -> Iterator[None]:
    """No file grows beyond this many bytes: a write that begins below is cut there, the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log")
    file.append(line("whole"))
    with disk_with_room_for(10), pytest.raises(OSError, match="too large"):
        file.append(line("as long as this"))
    assert file.path.read_text() == "whole\n"


def test_lines_lost_on_a_full_disk_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    there = tmp_path / "folder"
    there.write_text("a file where a folder should be")
    writer, file = LogWriter(), LogFile(there / "log")
    with caplog.at_level(logging.WARNING):
        for text in ("a\nb", "c"):
            writer.put(file, partial(line, text), 1)
        until_written(writer, tmp_path)
        there.unlink()
        writer.put(file, partial(line, "d"), 1)
        writer.close()
    assert written(file.path) == ['{"event":"dropped","lines":3}', "d"]
    assert len(caplog.records) == 1


def until_written(writer: LogWriter, folder: Path) -> None:
    """Wait until what was left so far was worked on: lines are made, then written, and only then the next are made."""
    for _ in range(2):
        made = threading.Event()

        def mark(made: threading.Event = made) -> bytes:
            made.set()
            return b""

        writer.put(LogFile(folder / "mark"), mark, 1)
        assert made.wait(10)


def test_a_full_file_is_rotated(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log", max_bytes=10, kept=2)
    for number in range(5):
        file.append(line(f"line {number} is long"))
    assert [written(tmp_path / name) for name in ("log", "log.1", "log.2")] == [
        ["line 4 is long"],
        ["line 3 is long"],
        ["line 2 is long"],
    ]
    assert len(list(tmp_path.iterdir())) == 3
    file.append(b"")
    assert written(file.path) == ["line 4 is long"]
    nothing_kept = LogFile(tmp_path / "other", max_bytes=10)
    for number in range(3):
        nothing_kept.append(line(f"line {number}"))
    assert written(nothing_kept.path) == ["line 2"]


def test_a_line_longer_than_the_file_limit_is_written(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log", max_bytes=4, kept=1)
    file.append(b"longer than that\n")
    assert written(file.path) == ["longer than that"]


def test_lines_that_exceed_the_queue_are_dropped_and_counted(tmp_path: Path) -> None:
    gate = threading.Event()

    def slow() -> bytes:
        gate.wait(10)
        return line("slow")

    writer, file = LogWriter(max_queued_lines=5, max_queued_bytes=100), LogFile(tmp_path / "log")
    assert writer.put(file, slow, 1)
    results = [writer.put(file, lambda: line("x"), 40) for _ in range(6)]
    assert results[:2] == [True, True]
    assert results[2:] == [False] * 4
    gate.set()
    # Writing frees room; no event says when.
    while not writer.put(file, lambda: line("later"), 1):
        pass
    writer.close()
    lines = written(file.path)
    assert lines[:3] == ["slow", "x", "x"]
    assert lines[-1] == "later"
    reported = [one for one in lines if one.startswith("{")]
    assert len(reported) == 1
    assert '"event":"dropped"' in reported[0]


def test_a_failed_line_affects_no_other_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bytes:
        raise ValueError("no line")

    (tmp_path / "wall").touch()
    writer, file, nowhere = LogWriter(), LogFile(tmp_path / "log"), LogFile(tmp_path / "wall" / "log")
    with caplog.at_level(logging.WARNING):
        writer.put(file, broken, 1)
        writer.put(nowhere, lambda: line("lost"), 1)
        writer.put(file, lambda: line("kept"), 1)
        writer.close()
    assert written(file.path) == ["kept"]
    assert "failed to render" in caplog.text
    assert "failed to write" in caplog.text


def test_a_line_is_in_its_file_when_a_writer_without_delay_returns(tmp_path: Path) -> None:
    writer, file = LogWriter(writes_at_once=True), LogFile(tmp_path / "log")
    for number in range(3):
        assert writer.put(file, partial(line, str(number)), 8)
        assert written(file.path) == [str(one) for one in range(number + 1)]
    writer.close()
