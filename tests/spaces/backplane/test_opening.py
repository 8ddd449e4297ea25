"""The configuration of a backplane, embedded servers, and what is said when NATS cannot be used."""

import subprocess
import sys
from pathlib import Path

import pytest
from mew_spaces.backplane.interface import BackplaneRefused, BackplaneUnavailable
from mew_spaces.backplane.jetstream import connect_jetstream, safe_name
from mew_spaces.backplane.nats_server import NatsServer
from mew_spaces.backplane.opening import embedded_server, open_backplane
from mew_spaces.config.loading import parse_space
from mew_spaces.launch.processes import started_mark

from tests.support.waiting import until


async def test_a_space_without_a_backplane_opens_none(tmp_path: Path) -> None:
    async with open_backplane(parse_space("space: {id: a}"), folder=tmp_path, state=tmp_path) as backplane:
        assert backplane is None


async def test_gateways_of_one_folder_share_an_embedded_server(tmp_path: Path) -> None:
    config = parse_space("{space: {id: a}, backplane: embedded-nats}")
    async with open_backplane(config, folder=tmp_path, state=tmp_path) as one:
        assert one is not None
        async with open_backplane(config, folder=tmp_path, state=tmp_path) as other:
            assert other is not None
            assert await one.append(b"a", "1") == 1
            assert await other.bounds() == (1, 1)
    # What was stored is there again.
    async with open_backplane(config, folder=tmp_path, state=tmp_path) as one:
        assert one is not None
        assert await one.bounds() == (1, 1)
    assert not (tmp_path / "nats" / "address.json").exists()


OWNER = """
import sys
from pathlib import Path
from mew_spaces.backplane.nats_server import NatsServer
server = NatsServer(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


async def test_a_server_ends_with_its_killed_owner(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert started_mark(pid) is not None
        owner.kill()
        await until(lambda: started_mark(pid) is None)
