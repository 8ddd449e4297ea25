"""Connections leave file descriptors for everything else, whatever floods a server."""

import asyncio
import logging
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio import to_thread
from mew_listener.accepting import Acceptor
from mew_listener.descriptors import RESERVED_SHARE, DescriptorBudget
from mew_listener.log_budget import survived
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.auth import TokenBook, read_token_file
from websockets.asyncio.client import connect

from tests.support.waiting import PATIENCE_SECONDS

FEW = 160
"""Descriptors of the gateway under attack. It needs about 30 of them for itself."""

PROGRAM = f"""
import logging, resource, sys
from pathlib import Path
import anyio
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import has_uvloop, serve_gateway

resource.setrlimit(resource.RLIMIT_NOFILE, (64, {FEW}))  # the gateway raises the first
logging.basicConfig(stream=sys.stderr)
config = parse_space('space: {{id: demo}}\\nparticipants: {{ada: {{role: person}}}}')

async def main():
    async with serve_gateway(config, state=Path(sys.argv[1])) as gateway:
        print(gateway.port, flush=True)
        await anyio.sleep_forever()

anyio.run(main, backend_options={{"use_uvloop": has_uvloop() and sys.argv[2] == "uvloop"}})
"""


@contextmanager
def gateway_with_few_descriptors(folder: Path, loop: str) -> Iterator[tuple[int, Path]]:
    """A gateway in a process of its own. Yields its port and its log."""
    log = folder / "log"
    command = [sys.executable, "-c", PROGRAM, str(folder / "state"), loop]
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), log
            assert process.poll() is None, "the gateway ended"
        finally:
            process.terminate()


@contextmanager
def flood(port: int, address: str, count: int) -> Iterator[None]:
    """Idle connections from an address of this machine."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=(address, 0)))
        yield


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("attacker", ["127.0.0.1", "127.0.0.2"], ids=["same-address", "other-address"])
async def test_a_flood_of_idle_connections_leaves_members_in_the_space(
    attacker: str, loop: str, tmp_path: Path
) -> None:
    if sys.platform != "linux" and attacker != "127.0.0.1":
        pytest.skip("other systems have one loopback address")
    with gateway_with_few_descriptors(tmp_path, loop) as (port, log):
        stored = read_token_file(tmp_path / "state" / "tokens" / "ada.token")
        assert stored is not None
        headers = {"authorization": f"Bearer {stored.token}"}
        async with (
            httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False, verify=False
            ) as http,
            http.stream("GET", "/spaces/demo/events", timeout=PATIENCE_SECONDS) as response,
            connect(f"ws://127.0.0.1:{port}/", additional_headers=headers, proxy=None) as member,
        ):
            events = response.aiter_bytes()
            await anext(events)
            await member.recv()
            with ExitStack() as flooding:
                await to_thread.run_sync(flooding.enter_context, flood(port, attacker, 3 * FEW))
                # New requests are answered, and the tokens are read again, which needs descriptors.
                (tmp_path / "state" / "tokens" / "new.observer").write_text("token-of-an-observer\n")
                with anyio.fail_after(PATIENCE_SECONDS):
                    observer = {"authorization": "Bearer token-of-an-observer"}
                    while (await http.get("/spaces/demo/context", headers=observer)).status_code != 200:
                        await anyio.sleep(0.1)
                    async with connect(f"ws://127.0.0.1:{port}/", additional_headers=headers, proxy=None) as newcomer:
                        assert "system/welcome" in str(await newcomer.recv())
                    await member.send('{"kind": "chat", "payload": {"text": "still here"}}')
                    while b"still here" not in await anext(events):
                        pass
    assert log.read_text().count("\n") < 20, "one line for each connection would fill the disk"


async def test_a_member_with_many_unfinished_requests_keeps_no_other_out(tmp_path: Path) -> None:
    with gateway_with_few_descriptors(tmp_path, "asyncio") as (port, _), ExitStack() as flooding:
        stored = read_token_file(tmp_path / "state" / "tokens" / "ada.token")
        assert stored is not None
        (tmp_path / "state" / "tokens" / "new.observer").write_text("token-of-an-observer\n")
        head = (
            f"POST /participants/ada/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {stored.token}\r\n"
        )
        for _ in range(3 * FEW):
            one = await to_thread.run_sync(socket.create_connection, ("127.0.0.1", port))
            flooding.enter_context(one)
            one.sendall(f"{head}Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n".encode())
            with suppress(ConnectionError):
                await to_thread.run_sync(one.recv, 1_000)  # its token has been checked
        async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=PATIENCE_SECONDS) as http:
            observer = {"authorization": "Bearer token-of-an-observer"}
            for _ in range(5):
                answer = await http.get(f"http://127.0.0.1:{port}/spaces/demo/context", headers=observer)
                assert answer.status_code == 200


@contextmanager
def few_descriptors(left: int) -> Iterator[None]:
    """Lower the limit of this process, so that it can open only a few more files. The others stay open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as fillers:
        used = max(int(one.name) for one in Path("/dev/fd").iterdir())
        while (filler := os.dup(0)) < used:  # earlier tests leave gaps among the numbers
            fillers.callback(os.close, filler)
        os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1 + left, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_connection_without_strangers_to_replace_is_refused() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        with ExitStack() as others:
            for _ in range(100):
                others.enter_context(socket.socket())
            others.enter_context(few_descriptors(left=5))
            acceptor = Acceptor(listener, asyncio.Protocol, make_room=lambda: False, connections=lambda: 0)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(acceptor.run)
                with anyio.fail_after(PATIENCE_SECONDS):
                    reader, writer = await asyncio.open_connection(*listener.getsockname())
                    assert await reader.read() == b""
                    writer.close()
                    acceptor.stop_soon()


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    program = (
        "import resource\n"
        "from mew_listener.descriptors import *\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 800))\n"
        "raise_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(800, 800)"


def test_an_eighth_of_the_descriptors_is_kept_from_connections() -> None:
    with few_descriptors(left=100):
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = sum(1 for _ in Path("/dev/fd").iterdir()) - 1
        connections = limit - limit // RESERVED_SHARE - used
        with ExitStack() as stack:
            for _ in range(connections - 2):
                stack.enter_context(socket.socket())
            assert not DescriptorBudget(lambda: connections - 2).is_full()
            for _ in range(3):
                stack.enter_context(socket.socket())
            assert DescriptorBudget(lambda: connections + 1).is_full()


def test_tokens_survive_a_lack_of_descriptors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    book = TokenBook.load(parse_space("space: {id: demo}\nparticipants: {ada: {}}"), tmp_path, environ={})
    token = book.token_of("ada")
    (file,) = (tmp_path / "tokens").glob("ada.token")
    with few_descriptors(left=5), ExitStack() as stack:
        for _ in range(200):
            try:
                stack.enter_context(socket.socket())
            except OSError:
                break
        os.utime(file)
        assert book.refresh() == ()
        assert book.identify(token) == "ada"
    file.write_text("another\n")
    assert book.refresh() == ("ada",)
    assert book.identify("another") == "ada"
    assert any("tried again" in one.message for one in caplog.records)


@pytest.mark.parametrize("failure", [OSError(24, "Too many open files"), ZeroDivisionError()])
def test_only_errors_of_the_system_are_survived(failure: Exception) -> None:
    def run() -> None:
        with survived("a task", logging.getLogger("mew_listener")):
            raise failure

    with nullcontext() if isinstance(failure, OSError) else pytest.raises(ZeroDivisionError):
        run()
