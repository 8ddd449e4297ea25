"""A gateway with TLS: what clients reach through it, and what peers that never finish a handshake can do."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio import to_thread
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.config.settings import GatewayOptions
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.certificate import TlsFiles, tls_files
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from pydantic import ValidationError

from tests.support.certificates import Certified, certified
from tests.support.gateway_client import joined
from tests.support.raw_socket import raw_socket, read_until_closed
from tests.support.waiting import PATIENCE_SECONDS

SPACE = """
space: {id: demo}
participants: {ada: {capabilities: [{kind: "*"}]}, bob: {}}
limits: {header_timeout_seconds: 0.5, join_timeout_seconds: 0.5, unjoined_connections_per_address: 20}
"""
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The start of a TLS handshake."""


@pytest.fixture
def tls(tmp_path: Path) -> Certified:
    return certified(tmp_path)


@pytest.fixture
def config() -> SpaceConfig:
    return parse_space(SPACE)


def client_context(tls: Certified) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=tls.ca_file)


async def test_members_talk_over_wss_and_read_over_https(tls: Certified, config: SpaceConfig) -> None:
    context = client_context(tls)
    text = "x" * 300_000  # many TLS records
    async with serve_gateway(config, tls=tls.files) as gateway:
        assert gateway.url.startswith("https://")
        async with joined(gateway, "ada", ssl=context) as ada, joined(gateway, "bob", ssl=context) as bob:
            assert gateway.ws_url.startswith("wss://")
            await ada.chat(text)
            assert (await bob.until("chat"))["payload"]["text"] == text
            await ada.send_envelope("space/invite", {"participant_id": "guest", "initial_capabilities": []})
            invited = (await ada.until("space/invite-ack"))["payload"]
            assert invited["connection_url"] == f"wss://localhost:{gateway.port}/"
        async with httpx2.AsyncClient(base_url=gateway.url, verify=context, trust_env=False) as http:
            assert (await http.get("/health")).json()["status"] == "ok"


async def test_public_url_is_what_invited_participants_get(config: SpaceConfig) -> None:
    options = GatewayOptions(public_url="https://mew.example.org/")
    async with serve_gateway(config.model_copy(update={"gateway": options})) as gateway:
        async with joined(gateway, "ada") as ada:
            await ada.send_envelope("space/invite", {"participant_id": "guest", "initial_capabilities": []})
            invited = (await ada.until("space/invite-ack"))["payload"]
            assert invited["connection_url"] == "wss://mew.example.org/"
        async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False) as http:
            assert (await http.get("/health", headers={"host": "mew.example.org"})).status_code == 200
            assert (await http.get("/health", headers={"host": "other.example.org"})).status_code == 403


def test_old_versions_of_tls_are_refused(tls: Certified) -> None:
    assert tls.files.context().minimum_version == ssl.TLSVersion.TLSv1_2


@contextmanager
def sent(gateway: RunningGateway, data: bytes, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        connections = [stack.enter_context(raw_socket(gateway)) for _ in range(count)]
        for connection in connections:
            connection.sendall(data)
        yield connections


@pytest.mark.parametrize("data", [b"", HELLO, b"GET / HTTP/1.1\r\n\r\n"], ids=["silent", "half", "no-tls"])
async def test_a_handshake_that_does_not_end_is_ended(
    data: bytes, tls: Certified, config: SpaceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attack(gateway: RunningGateway) -> None:
        with sent(gateway, data, 1) as (connection,):
            read_until_closed(connection)

    monkeypatch.setattr(
        "mew_listener.listener_options.HEADER_SECONDS", 3_600.0
    )  # what holds is the option of the space
    async with serve_gateway(config, tls=tls.files) as gateway:
        await to_thread.run_sync(attack, gateway)


async def test_a_client_that_is_silent_after_the_handshake_is_refused(tls: Certified, config: SpaceConfig) -> None:
    def attack(gateway: RunningGateway) -> bytes:
        context = client_context(tls)
        with raw_socket(gateway) as plain, context.wrap_socket(plain, server_hostname="localhost") as connection:
            return connection.recv(12)

    async with serve_gateway(config, tls=tls.files) as gateway:
        assert await to_thread.run_sync(attack, gateway) == b"HTTP/1.1 408"


def patient(config: SpaceConfig) -> SpaceConfig:
    """The same, but with an hour for the handshake."""
    return config.model_copy(update={"limits": config.limits.model_copy(update={"header_timeout_seconds": 3_600.0})})


async def test_unfinished_handshakes_count_as_unjoined(tls: Certified, config: SpaceConfig) -> None:
    def attack(gateway: RunningGateway) -> None:
        with sent(gateway, HELLO, 20) as unfinished, raw_socket(gateway):
            read_until_closed(unfinished[0])

    async with serve_gateway(patient(config), tls=tls.files) as gateway:
        with anyio.fail_after(PATIENCE_SECONDS):  # less than an unfinished handshake may take here
            await to_thread.run_sync(attack, gateway)
            async with joined(gateway, "ada", ssl=client_context(tls)):
                pass


async def test_gateway_stops_while_handshakes_are_open(tls: Certified, config: SpaceConfig) -> None:
    with ExitStack() as stack, anyio.fail_after(PATIENCE_SECONDS):
        async with serve_gateway(patient(config), tls=tls.files) as gateway:
            connections = await to_thread.run_sync(stack.enter_context, sent(gateway, HELLO, 5))
            async with joined(gateway, "ada", ssl=client_context(tls)):
                pass  # the five were accepted before
        for one in connections:
            read_until_closed(one)


def test_the_files_of_a_certificate_are_checked(tmp_path: Path, tls: Certified) -> None:
    (tmp_path / "other").mkdir()
    other = certified(tmp_path / "other")
    missing = tmp_path / "missing.pem"
    words = tmp_path / "words.pem"
    words.write_text("not a certificate")
    for files, problem in (
        (TlsFiles(missing, tls.files.key), "missing.pem: cannot be read: No such file"),
        (TlsFiles(tls.files.cert, other.files.key), "key.pem: is not the private key of"),
        (TlsFiles(words, tls.files.key), "expected a certificate and its private key in PEM"),
    ):
        with pytest.raises(SpacesError, match=problem):
            files.context()


def test_settings_name_both_files_or_none(tmp_path: Path) -> None:
    both = GatewayOptions(tls_cert="c.pem", tls_key="/k.pem")
    config = parse_space(SPACE).model_copy(update={"gateway": both})
    assert tls_files(config, tmp_path) == TlsFiles(tmp_path / "c.pem", Path("/k.pem"))
    with pytest.raises(ValidationError, match="'tls_cert' needs 'tls_key'"):
        GatewayOptions(tls_cert="c.pem")
    for url in ("mew.example.org", "https://mew.example.org/path", "wss://mew.example.org", "https://a@b"):
        with pytest.raises(ValidationError, match="without a path"):
            GatewayOptions(public_url=url)
    with pytest.raises(ValidationError, match="IP address or network"):
        GatewayOptions(trusted_proxies=("10.0.0.1/8",))
