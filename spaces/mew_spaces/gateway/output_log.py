"""The output log of a participant: a file that receives its messages, one JSON line each.

A participant with an output log and no program is called virtual.

The file is a connection's outbound channel like any other. Its reader may truncate or move it at any time.
"""

from collections.abc import Iterable
from pathlib import Path

from mew_settings.private_files import FileLock
from pydantic_core import to_json

from mew_spaces.config.settings import GatewayLogging
from mew_spaces.gateway.log_writer import LogFile, LogWriter
from mew_spaces.gateway.outbound import OutboundChannel, unframe


class FileChannel(OutboundChannel):
    """An outbound channel that writes to a file."""

    def __init__(self, folder: Path, name: str, writer: LogWriter, sizes: GatewayLogging) -> None:
        """`name` is the file's path relative to `folder`, the space's folder.

        `sizes` limits the file, and the number of old files.
        """
        super().__init__()
        self._folder = folder.resolve()
        path = (self._folder / name).resolve()
        self._file = LogFile(path, max_bytes=sizes.max_file_bytes, kept=sizes.kept_files, follows_links=False)
        self._writer = writer
        self._lock: FileLock | None = None

    def prepare(self, *, is_shared: bool = False) -> None:
        """Create the file, readable only by its owner. Raises `OSError`, also for a file outside the folder.

        Only one of several gateways writes it: raises `BlockingIOError` if another does.
        """
        path = self._file.path
        if not path.is_relative_to(self._folder):
            raise PermissionError(f"it is outside the space's folder, {self._folder}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_shared:
            self._lock = FileLock(path.with_name(f"{path.name}.lock"))
        path.touch(mode=0o600)
        path.chmod(0o600)

    def write(self, framed: bytes) -> None:
        """Queue a message for the log writer."""
        self._writer.put(self._file, as_line, len(framed), framed)

    def write_frames(self, frames: Iterable[bytes], _joined: bytes) -> None:
        """Queue several messages for the log writer."""
        for framed in frames:
            self.write(framed)

    def limit_buffer(self, _max_bytes: int) -> None:
        """Do nothing: the log writer limits the queue of all its files."""

    def close(self, _code: int, _reason: str) -> None:
        """Stop writing."""
        self.stop_writing()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def close_with_message(self, last: bytes, code: int, reason: str) -> None:
        """Write a last message, then stop."""
        self.write(last)
        self.close(code, reason)


def as_line(framed: bytes) -> bytes:
    """Return a message as a line: an envelope unchanged, a stream frame as an object with its bytes as numbers."""
    message = unframe(framed)
    if isinstance(message, str) and not message.startswith("#"):
        # Our encoder writes no line breaks.
        return message.encode() + b"\n"
    data = message.encode() if isinstance(message, str) else message
    return to_json({"type": "Buffer", "data": list(data)}) + b"\n"
