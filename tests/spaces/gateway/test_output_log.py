"""Virtual participants: files that receive messages."""

import json
from pathlib import Path

import pytest
from mew_spaces.config.settings import GatewayLogging
from mew_spaces.gateway.log_writer import LogWriter
from mew_spaces.gateway.outbound import frame_json, frame_message
from mew_spaces.gateway.output_log import FileChannel, as_line


def test_an_envelope_is_one_line_and_a_frame_its_bytes() -> None:
    assert as_line(frame_json('{"a":"ü"}'.encode())) == '{"a":"ü"}\n'.encode()
    for frame in ("#s#ü\n", "#s#ü\n".encode()):
        reported = json.loads(as_line(frame_message(frame)))
        assert (reported["type"], bytes(reported["data"])) == ("Buffer", "#s#ü\n".encode())


def test_a_channel_appends_to_its_file(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "out.log"
    writer = LogWriter()
    channel = FileChannel(tmp_path, "logs/out.log", writer, GatewayLogging())
    channel.prepare()
    assert path.read_bytes() == b""
    path.write_text("before\n")
    channel.write(frame_json(b"{}"))
    channel.close_with_message(frame_json(b'{"last":true}'), 4403, "removed")
    assert not channel.is_open
    writer.close()
    assert path.read_text() == 'before\n{}\n{"last":true}\n'


def test_a_large_file_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    writer = LogWriter()
    channel = FileChannel(tmp_path, "out.log", writer, GatewayLogging(max_file_bytes=4096, kept_files=1))
    channel.prepare()
    writer.close()
    channel._file.append(b"x" * 4000)
    channel._file.append(b"y" * 4000)
    assert path.read_bytes() == b"y" * 4000
    assert (tmp_path / "out.log.1").read_bytes() == b"x" * 4000


@pytest.mark.parametrize("name", ["../out.log", "/tmp/out.log", "link/out.log", "link.log"])
def test_a_file_outside_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    space, outside = tmp_path / "space", tmp_path / "outside"
    space.mkdir()
    outside.mkdir()
    (space / "link").symlink_to(outside)
    (space / "link.log").symlink_to(outside / "out.log")
    channel = FileChannel(space, name, LogWriter(), GatewayLogging())
    with pytest.raises(PermissionError, match="outside"):
        channel.prepare()
    assert list(outside.iterdir()) == []


def test_a_file_that_becomes_a_link_is_not_written(tmp_path: Path) -> None:
    victim, path, writer = tmp_path / "victim", tmp_path / "space" / "out.log", LogWriter()
    victim.write_text("mine\n")
    path.parent.mkdir()
    channel = FileChannel(path.parent, "out.log", writer, GatewayLogging())
    channel.prepare()
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    path.symlink_to(victim)
    channel.write(frame_json(b"{}"))
    writer.close()
    assert victim.read_text() == "mine\n"
