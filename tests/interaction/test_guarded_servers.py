"""The same attacks on every server: silent and slow clients, large bodies, foreign pages, malformed bytes, floods."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from anyio import to_thread
from mew_listener import listener_options
from mew_listener.request_guard import ONLY_OWN, Allowed

from tests.house.conftest import Module
from tests.house.conftest import modules as modules
from tests.support import guarded_servers
from tests.support.guarded_servers import HEADER_SECONDS, SERVERS, TOKEN
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.warm_start import PYTHON

FEW = 200
"""File descriptors of a server under attack."""

ALL = pytest.mark.parametrize("module", SERVERS, ids=[name for name, _, _ in SERVERS.values()])

_Attack = Callable[[tuple[str, int]], bytes]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_options, "HEADER_SECONDS", HEADER_SECONDS)
    monkeypatch.setattr(listener_options, "REQUEST_SECONDS", 2 * HEADER_SECONDS)
    monkeypatch.setattr(listener_options, "BODY_BYTES", 10_000)


def test_every_server_is_attacked_here(modules: list[Module]) -> None:
    starting = {f"mew_listener.serving.{name}" for name in ("serving", "Server")}
    found = {one.name for one in modules if one.imports() & starting and not one.name.startswith("mew_listener")}
    assert found <= SERVERS.keys()
    for module in modules:
        if not module.name.startswith("mew_listener"):
            text = module.path.read_text(encoding="utf-8")
            assert not any(f".{call}(" in text for call in ("create_server", "start_server")), module.path


async def attacked(module: str, attack: _Attack, allowed: Allowed = ONLY_OWN) -> bytes:
    """Run an attack, and check that the server still answers."""
    async with SERVERS[module][1](allowed) as url:
        place = urlsplit(url)
        assert place.hostname is not None
        assert place.port is not None
        with anyio.fail_after(PATIENCE_SECONDS):
            answer = await to_thread.run_sync(attack, (place.hostname, place.port))
            async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
                assert (await http.get(f"http://{place.netloc}/nothing")).status_code in (401, 404, 502)
    return answer


def post(module: str, *headers: str, host: str = "localhost") -> bytes:
    """The head of a request with a body, as an authenticated client sends it."""
    lines = (f"POST {SERVERS[module][2]} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {TOKEN}", *headers)
    return ("\r\n".join((*lines, "Content-Type: application/json")) + "\r\n\r\n").encode()


def send(data: bytes, then: bytes = b"") -> _Attack:
    """An attack that sends bytes and returns what arrives until the server closes the connection."""

    def attack(address: tuple[str, int]) -> bytes:
        answer = b""
        with socket.create_connection(address, timeout=PATIENCE_SECONDS) as connection, suppress(ConnectionError):
            connection.sendall(data)
            connection.sendall(then)
            while piece := connection.recv(65_536):
                answer += piece
        return answer

    return attack


@ALL
@pytest.mark.parametrize("start", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
async def test_a_client_without_a_request_is_disconnected(module: str, start: bytes) -> None:
    await attacked(module, send(start))


@ALL
async def test_a_header_that_comes_slowly_does_not_extend_the_time(module: str) -> None:
    def attack(address: tuple[str, int]) -> bytes:
        with socket.create_connection(address, timeout=HEADER_SECONDS / 10) as connection, suppress(ConnectionError):
            connection.sendall(b"GET / HTTP/1.1\r\n")
            while True:
                with suppress(TimeoutError):
                    connection.sendall(b"X")
                    if not connection.recv(1000):
                        break
        return b""

    await attacked(module, attack)


@ALL
async def test_a_body_that_does_not_end_is_refused(module: str) -> None:
    await attacked(module, send(post(module, "Content-Length: 1000"), b"{"))


@ALL
@pytest.mark.parametrize("is_chunked", [False, True], ids=["announced", "chunked"])
async def test_a_body_that_is_too_large_is_refused(module: str, is_chunked: bool) -> None:
    size = 1_000_000_000
    head = post(module, "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {size}")
    answer = await attacked(module, send(head, b"%x\r\n" % size + b" " * 2_000_000))
    if SERVERS[module][0] != "mew meter":  # it passes bodies on and keeps none
        # On a busy machine `mew serve a2a` ends its wait for an agent, which is not here, before it has read too much.
        early = [b"404"] if SERVERS[module][0] == "mew serve a2a" else []
        assert answer[9:12] in (b"413", *early)


@ALL
async def test_a_body_in_tiny_chunks_is_refused(module: str) -> None:
    """Each chunk costs as much as a large one: three million a second of them would stop a server."""
    head = post(module, "Transfer-Encoding: chunked")
    answer = await attacked(module, send(head, b"1\r\n \r\n" * 200_000))
    assert answer == b"" or answer[9:10] in (b"4", b"5")


FOREIGN = {"rebound.example.com": None, "localhost": "https://evil.example", "localhost:1": "null"}
"""Host and origin of pages that may not use a server."""


@ALL
@pytest.mark.parametrize("host", FOREIGN)
async def test_a_page_of_another_site_uses_no_server(module: str, host: str) -> None:
    origin = FOREIGN[host]
    lines = ["Content-Length: 2", "Connection: close", *([f"Origin: {origin}"] if origin else [])]
    answer = await attacked(module, send(post(module, *lines, host=host), b"{}"))
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"allow" in answer, "the answer says how to allow it"


@ALL
async def test_allowed_hosts_and_origins_use_a_server(module: str) -> None:
    allowed = Allowed(("models.example.com",), ("https://page.example",))
    lines = ("Content-Length: 2", "Connection: close")
    for host, more in (("models.example.com", ()), ("localhost", ("Origin: https://page.example",)), ("[::1]:1", ())):
        answer = await attacked(module, send(post(module, *lines, *more, host=host), b"{}"), allowed)
        assert answer.startswith(b"HTTP/1.1 ")
        assert not answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 421"))


MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\xff: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET \xff HTTP/1.1\r\n\r\n",
    b"GET /%ff%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"X" * 100_000,
    b"\r\n" * 50_000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@ALL
@pytest.mark.parametrize("data", MALFORMED, ids=range(len(MALFORMED)))
async def test_malformed_bytes_write_no_traceback(module: str, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    await attacked(module, send(data))
    assert not [one for one in caplog.records if one.exc_info]


@contextmanager
def with_few_descriptors(module: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """A server in a process of its own. Yields its URL and its log."""
    log = folder / "log"
    command = [PYTHON, guarded_servers.__file__, module, str(FEW)]
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip(), log
            assert process.poll() is None, "the server ended"
        finally:
            process.terminate()


@pytest.mark.parametrize("start", ["silent", "unfinished"])
@ALL
def test_a_flood_ends_no_server_and_fills_no_disk(module: str, start: str, tmp_path: Path) -> None:
    with with_few_descriptors(module, tmp_path) as (url, log):
        place = urlsplit(url)
        data = b"" if start == "silent" else post(module, "Content-Length: 1000") + b"{"
        with ExitStack() as stack:
            for _ in range(3 * FEW):
                connection = socket.create_connection((place.hostname, place.port or 0), timeout=PATIENCE_SECONDS)
                stack.enter_context(connection)
                with suppress(ConnectionError):
                    connection.sendall(data)
            request = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            answers = [send(request)((str(place.hostname), place.port or 0)) for _ in range(3)]
            assert any(answer.startswith(b"HTTP/1.1 ") for answer in answers), answers
    assert log.stat().st_size < 20_000
