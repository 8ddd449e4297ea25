"""Reading and writing lines of blocking streams, files and FIFOs."""

import os
import stat
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from queue import Queue
from threading import Event, Thread

import anyio
import anyio.to_thread
import pytest

from mew_agent.errors import ConfigError
from mew_agent.parts.shared import line_io
from mew_agent.parts.shared.line_io import fifo_writer, file_writer, lines_of_fifo, make_fifo, read_lines
from tests.support.waiting import PATIENCE_SECONDS

fifos = pytest.mark.skipif(sys.platform == "win32", reason="there are no FIFOs")


async def test_lines_arrive_without_line_ends() -> None:
    async with read_lines(StringIO("one\r\n\ntwo")) as lines:
        with anyio.fail_after(PATIENCE_SECONDS):
            assert [line async for line in lines] == ["one", "", "two"]


async def test_blocked_source_does_not_delay_the_end() -> None:
    never = Event()

    def source() -> Iterator[str]:
        yield "first"
        never.wait(PATIENCE_SECONDS)
        yield "late"

    with anyio.fail_after(PATIENCE_SECONDS):
        async with read_lines(source()) as lines:
            assert await lines.receive() == "first"
    never.set()


@fifos
async def test_fifo_is_private_and_accepts_writers_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "new" / "in"
    source = lines_of_fifo(path)
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert path.stat().st_mode & 0o077 == 0
    async with read_lines(source) as lines:
        with anyio.fail_after(PATIENCE_SECONDS):
            for text in ("one", "two"):
                await anyio.to_thread.run_sync(path.write_text, f"{text}\n")
                assert await lines.receive() == text
    await anyio.to_thread.run_sync(path.write_text, "\n")  # lets the reader's thread notice that its reader is gone


@fifos
def test_no_line_is_lost_between_two_writers(tmp_path: Path) -> None:
    path = tmp_path / "in"
    source = lines_of_fifo(path)
    sent = [f"{number}\n" for number in range(2_000)]
    read: Queue[str] = Queue()

    def take_all() -> None:
        for line in source:
            read.put(line)

    Thread(target=take_all, daemon=True).start()
    for line in sent:
        path.write_text(line)
    assert [read.get(timeout=PATIENCE_SECONDS) for _ in sent] == sent


@fifos
async def test_last_line_without_line_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in"
    async with read_lines(lines_of_fifo(path)) as lines:
        with anyio.fail_after(PATIENCE_SECONDS):
            await anyio.to_thread.run_sync(path.write_text, "")
            await anyio.to_thread.run_sync(path.write_text, "one")
            assert await lines.receive() == "one"
            await anyio.to_thread.run_sync(path.write_text, "two\n")
            assert await lines.receive() == "two"
    await anyio.to_thread.run_sync(path.write_text, "\n")


async def test_plain_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("one\ntwo\n")
    assert list(lines_of_fifo(path)) == ["one\n", "two\n"]


def test_emptied_file_is_written_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "out.jsonl"
    write = file_writer(path)
    write("one")
    path.write_text("")
    write("two")
    assert path.read_text() == "two\n"


def test_unwritable_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        file_writer(tmp_path)


@fifos
async def test_fifo_buffers_lines_and_drops_the_newest_when_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_io, "MAX_WAITING_LINES", 2)
    path = tmp_path / "out"
    dropped: list[int] = []
    write = fifo_writer(path, on_full=lambda: dropped.append(1))
    long = "x" * 200_000  # more than a pipe holds, so the writer stands still with it
    write(long)
    with anyio.fail_after(PATIENCE_SECONDS):
        while not dropped:
            write("next")
            await anyio.sleep(0)
    write("dropped, too")
    assert dropped == [1]
    with path.open() as reader:
        first = await anyio.to_thread.run_sync(reader.readline)
        second = await anyio.to_thread.run_sync(reader.readline)
    assert (first, second) == (f"{long}\n", "next\n")


@fifos
def test_existing_file_is_kept(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine")
    make_fifo(tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot create a FIFO"):
        make_fifo(tmp_path / "file" / "in")
