"""Participants that are a file: everything a member would be sent is appended to it, one JSON line each.

Such a log is the channel of a connection like any other. What is done with the file meanwhile (it may be truncated or
moved) is its reader's business.
"""

from pathlib import Path

from pydantic_core import to_json

from mew_spaces.gateway.log_writer import LogFile, LogWriter
from mew_spaces.gateway.outbound import OutboundChannel, unframe


class FileChannel(OutboundChannel):
    """The way out into a file (`fanout.OutboundChannel`)."""

    def __init__(self, path: Path, writer: LogWriter) -> None:
        super().__init__()
        self._file = LogFile(path, is_private=False)
        self._writer = writer

    def prepare(self) -> None:
        """Make the file, empty, unless it is there. Raises `OSError`."""
        self._file.path.parent.mkdir(parents=True, exist_ok=True)
        self._file.path.touch()

    def write(self, framed: bytes) -> None:
        """Leave a message to be written."""
        self._writer.put(self._file, line_of, len(framed), framed)

    def limit_buffer(self, _max_bytes: int) -> None:
        """Nothing waits here: the writer bounds what waits for all of its files."""

    def close(self, _code: int, _reason: str) -> None:
        """Write nothing from now on."""
        self.stop_writing()

    def close_with_message(self, last: bytes, code: int, reason: str) -> None:
        """One last line."""
        self.write(last)
        self.close(code, reason)


def line_of(framed: bytes) -> bytes:
    """A message as a line: an envelope as it is, a stream frame as an object with its bytes as numbers."""
    message = unframe(framed)
    if isinstance(message, str) and not message.startswith("#"):
        # Our own encoder writes no line breaks.
        return message.encode() + b"\n"
    data = message.encode() if isinstance(message, str) else message
    return to_json({"type": "Buffer", "data": list(data)}) + b"\n"
