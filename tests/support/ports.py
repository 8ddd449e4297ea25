"""Ports for programs that a test starts with an address of its own."""

import random
import socket
from contextlib import ExitStack, suppress


def unused_ports(count: int = 1) -> list[int]:
    """Ports that nothing listens on, and that the system never gives to a program that asks for any port.

    Those it gives away begin at 32768 on Linux and at 49152 elsewhere, so that none of these is taken before a program
    of the test listens there.
    """
    with ExitStack() as probes:
        found: list[int] = []
        while len(found) < count:
            port = random.randrange(20_000, 32_000)
            with suppress(OSError):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    return found
