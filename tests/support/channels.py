"""A channel that records what is written to it."""

from collections.abc import Iterable

from mew_spaces.gateway.outbound import OutboundChannel, unframe


class RecordingChannel(OutboundChannel):
    """A channel that writes to a list. Fails if something is written after it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes | str] = []
        self.closed: tuple[int, str] | None = None
        self.max_waiting_bytes: int | None = None

    def limit_buffer(self, max_bytes: int) -> None:
        """Keep the bound; nothing ever waits in a list."""
        self.max_waiting_bytes = max_bytes

    def write(self, framed: bytes) -> None:
        """Keep a message."""
        assert self.is_open, "written after the end"
        self.written.append(unframe(framed))

    def write_frames(self, frames: Iterable[bytes], joined: bytes) -> None:
        """Keep several messages."""
        for framed in frames:
            if self.is_open:
                self.write(framed)

    def close(self, code: int, reason: str) -> None:
        """Remember how it was closed."""
        self.stop_writing()
        self.closed = (code, reason)

    def close_with_message(self, last: bytes, code: int, reason: str) -> None:
        """Keep a last message and end."""
        self.written.append(unframe(last))
        self.close(code, reason)
