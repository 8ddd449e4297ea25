"""Where programs will listen, settled before any of them is started.

Owns the try: a port is bound for a moment, so that a taken one is told at once, and a free one can be told to everybody
who will connect to it. Nothing stays open here.
"""

import errno
import socket

from mew_spaces.errors import PortInUse
from mew_spaces.launch.launch import ListenAddress

from mew_agent.errors import ConfigError


def place_to_listen(host: str, port: int) -> ListenAddress:
    """The address to listen at; port 0 becomes a free one. Raises `PortInUse`, or `ConfigError` for a bad host."""
    if port == 0:
        return ListenAddress(host, free_port(host))
    try:
        _try(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from None
        raise ConfigError("--host, --port", f"cannot listen there: {error.strerror or error}") from None
    return ListenAddress(host, port)


def free_port(host: str) -> int:
    """A port of this host that nobody listens at now. Raises `ConfigError` where one cannot listen at all."""
    try:
        return _try(host, 0)
    except OSError as error:
        raise ConfigError("--host", f"cannot listen on '{host}': {error.strerror or error}") from None


def _try(host: str, port: int) -> int:
    """Listen for a moment. Returns the port that this took; raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
        taken: int = listener.getsockname()[1]
        return taken
