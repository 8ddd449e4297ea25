"""The gateway's URL, and certificates that participants and commands accept or reject."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.certificates import CA_VARIABLE, trust
from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.errors import CertificateRejected, ConfigError, GatewayError, MewAgentError, NotConnected
from mew_agent.gateway_address import http_url, is_loopback
from mew_agent.participant.participant import Participant
from tests.support.certificates import Certified, certified
from tests.support.waiting import PATIENCE_SECONDS

CONFIG = parse_space("space: {id: demo}\nparticipants: {ada: {capabilities: [{kind: '*'}]}}")


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        ("ws://host:1", "http://host:1"),
        ("wss://host/mew/", "https://host/mew"),
        ("http://[::1]:1/", "http://[::1]:1"),
        ("HTTPS://host", "https://host"),
    ],
)
def test_both_url_schemes_name_the_same_gateway(given: str, reached: str) -> None:
    assert http_url(given) == reached


@pytest.mark.parametrize(
    "given", ["", "host:1", "ftp://host", "ws://", "ws://host:none", "ws://:80", "ws://host:99999"]
)
def test_invalid_gateway_url_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="--gateway"):
        http_url(given)


@asynccontextmanager
async def tls_gateway(tls: Certified) -> AsyncIterator[RunningGateway]:
    async with serve_gateway(CONFIG, tls=tls.files) as gateway:
        yield gateway


async def join(gateway: RunningGateway, url: str) -> None:
    token = gateway.token_of("ada")
    async with Participant(url, space="demo", id="ada", token=token, first_connect_seconds=3_600.0) as me:
        assert me.is_joined


async def ask(gateway: RunningGateway, url: str) -> None:
    api = GatewayApi(url, space="demo", participant="ada", token=gateway.token_of("ada"))
    board = await anyio.to_thread.run_sync(api.board)
    assert [entry.id for entry in board.participants] == ["ada"]


CLIENTS = pytest.mark.parametrize("reach", [join, ask])
Reach = Callable[[RunningGateway, str], Awaitable[None]]


@CLIENTS
@pytest.mark.parametrize("trusted", ["ca", "certificate"])
async def test_named_certificate_or_its_authority_is_trusted(
    reach: Reach, trusted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certified(tmp_path)
    monkeypatch.setenv(CA_VARIABLE, str(tls.ca_file if trusted == "ca" else tls.files.cert))
    async with tls_gateway(tls) as gateway:
        await reach(gateway, gateway.url)
        await reach(gateway, gateway.ws_url)


async def test_participant_trusts_the_file_it_is_given(tmp_path: Path) -> None:
    tls = certified(tmp_path)
    async with tls_gateway(tls) as gateway:
        token = gateway.token_of("ada")
        async with Participant(gateway.url, space="demo", id="ada", token=token, ca_file=tls.ca_file) as me:
            assert me.is_joined


async def rejection(reach: Reach, gateway: RunningGateway, url: str) -> str:
    """The error of a client, which does not come only when its time to connect has passed."""
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(MewAgentError) as raised:
        await reach(gateway, url)
    assert type(raised.value) is CertificateRejected
    return str(raised.value)


@CLIENTS
async def test_rejected_certificate_is_reported_with_its_cause_and_advice(
    reach: Reach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for case, names, days in (("unknown", (), 1), ("old", (), -1), ("other", ("mew.example.org",), 1)):
        (tmp_path / case).mkdir()
        tls = certified(tmp_path / case, *names, days=days)
        async with tls_gateway(tls) as gateway:
            if case == "unknown":
                shown = await rejection(reach, gateway, gateway.url)
                assert "is not trusted (unable to get local issuer); set MEW_CA_FILE to a PEM file" in shown
            monkeypatch.setenv(CA_VARIABLE, str(tls.ca_file))
            if case == "old":
                assert "has expired; renew it on the gateway" in await rejection(reach, gateway, gateway.url)
            if case == "other":
                shown = await rejection(reach, gateway, gateway.url)
                assert "is for another host than 127.0.0.1; connect to a name that it contains" in shown
            monkeypatch.delenv(CA_VARIABLE)


@CLIENTS
async def test_https_to_a_gateway_without_tls_is_reported_as_that(reach: Reach) -> None:
    async with serve_gateway(CONFIG) as gateway:
        with (
            anyio.fail_after(PATIENCE_SECONDS),
            pytest.raises(NotConnected, match="this port serves no TLS; try ws://"),
        ):
            await reach(gateway, gateway.url.replace("http:", "https:"))


async def test_plain_http_to_a_gateway_with_tls_suggests_tls(tmp_path: Path) -> None:
    async with tls_gateway(certified(tmp_path)) as gateway:
        url, token = gateway.url.replace("https:", "http:"), gateway.token_of("ada")
        with pytest.raises(GatewayError, match="this port serves TLS; use https:// or wss://"):
            await ask(gateway, url)
        with pytest.raises(NotConnected, match="this port serves TLS; use https:// or wss://"):
            async with Participant(url, space="demo", id="ada", token=token, first_connect_seconds=2.0):
                pass


def test_a_file_without_certificates_is_a_mistake_in_the_settings(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(ConfigError, match=r"ca_file: .*empty\.pem contains no certificate"):
        trust(empty)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        trust(tmp_path / "missing.pem")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "::1"])
def test_loopback_hosts_are_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["127.example.org", "127.0.0.1.example.org", "192.0.2.1", "0.0.0.0", "::", ""])
def test_other_hosts_are_not_loopback_with_any_prefix(host: str) -> None:
    assert not is_loopback(host)
