"""`mew serve model`: what it refuses. tests/interaction runs it as a process."""

import socket

from tests.support import command_space
from tests.support.cli import mew

gateway, quiet_environment = command_space.gateway, command_space.quiet_environment


async def test_taken_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = await mew("serve", "model", "--port", str(taken.getsockname()[1]))
    assert outcome.err.startswith("mew: --port: cannot listen on 127.0.0.1:")
    assert outcome.code == 2


async def test_help_says_that_replies_are_canned() -> None:
    outcome = await mew("serve", "model", "--help")
    assert "canned replies" in " ".join(outcome.out.split())
