"""[pure] Split bytes that arrive in pieces into lines. Searches every byte once, however small the pieces are."""


class LineReader:
    """Collects pieces until a line is complete. Lines end with a newline, which is removed.

    A line longer than `max_bytes` is returned in parts as it arrives; None means no limit.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def __len__(self) -> int:
        """Return the bytes of the incomplete line."""
        return len(self._rest)

    def feed(self, piece: bytes) -> list[bytes]:
        """Add a piece and return the lines that it completes."""
        *lines, last = piece.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += last
        if self._max_bytes is not None and len(self._rest) > self._max_bytes:
            lines.append(self.take_rest())
        return lines

    def take_rest(self) -> bytes:
        """Remove and return the incomplete line; empty if there is none."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest
