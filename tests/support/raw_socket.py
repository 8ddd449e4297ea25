"""A WebSocket client that sends any bytes, valid or not."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mew_spaces.gateway.gateway import RunningGateway

from tests.support.waiting import PATIENCE_SECONDS

CLOSE = 8
"""Opcode of a close frame."""

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@contextmanager
def raw_socket(gateway: RunningGateway) -> Iterator[socket.socket]:
    """A TCP connection that has sent nothing. Blocking: use it in a thread."""
    with socket.create_connection((gateway.host, gateway.port), timeout=PATIENCE_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def read_until_closed(connection: socket.socket) -> None:
    """Wait for the gateway to close a connection; raises TimeoutError if it never does."""
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass


def shake_hands(connection: socket.socket) -> None:
    """Become a WebSocket."""
    connection.sendall(HANDSHAKE)
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += connection.recv(1)
    assert answer.startswith(b"HTTP/1.1 101")


def frame(data: bytes, *, opcode: int = 1, final: bool = True, mask: bytes | None = b"\x01\x02\x03\x04") -> bytes:
    """One frame as a client sends it; without `mask` as it must not."""
    first = (0x80 if final else 0) | opcode
    bit = 0x80 if mask is not None else 0
    if len(data) < 126:
        head = bytes((first, bit | len(data)))
    elif len(data) < 65_536:
        head = bytes((first, bit | 126)) + struct.pack("!H", len(data))
    else:
        head = bytes((first, bit | 127)) + struct.pack("!Q", len(data))
    if mask is None:
        return head + data
    pad = int.from_bytes((mask * (len(data) // 4 + 1))[: len(data)])
    return head + mask + (int.from_bytes(data) ^ pad).to_bytes(len(data))


def messages(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """The server's frames as (opcode, data), until it closes. Answers a close frame, as each client must."""
    buffer = b""
    while True:
        while (parsed := _first(buffer)) is not None:
            opcode, data, buffer = parsed
            yield opcode, data
            if opcode == CLOSE:
                with suppress(OSError):
                    connection.sendall(frame(data[:2], opcode=CLOSE))
        try:
            chunk = connection.recv(1 << 16)
        except ConnectionError:
            return
        if not chunk:
            return
        buffer += chunk


def _first(buffer: bytes) -> tuple[int, bytes, bytes] | None:
    if len(buffer) < 2:
        return None
    size, start = buffer[1], 2
    if size == 126:
        size, start = int.from_bytes(buffer[2:4]), 4
    elif size == 127:
        size, start = int.from_bytes(buffer[2:10]), 10
    if len(buffer) < start + size:
        return None
    return buffer[0] & 0x0F, buffer[start : start + size], buffer[start + size :]
