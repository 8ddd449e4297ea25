"""The server under the gateway: the address it listens on, when it ends, and what it logs about bad input."""

import anyio
import pytest
from anyio import to_thread
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.errors import PortInUse, SpacesError
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from mew_spaces.gateway.listener import bound_socket
from mew_spaces.gateway.service import SpaceService

from tests.support.gateway_client import joined
from tests.support.raw_socket import frame, messages, raw_socket, shake_hands
from tests.support.waiting import PATIENCE_SECONDS


async def test_a_port_in_use_is_reported(config: SpaceConfig, gateway: RunningGateway) -> None:
    with pytest.raises(PortInUse) as caught:
        async with serve_gateway(config, port=gateway.port):
            pytest.fail("two gateways on one port")
    assert caught.value.port == gateway.port


@pytest.mark.parametrize("host", ["203.0.113.1", "x" * 70])
async def test_an_unusable_address_is_reported(config: SpaceConfig, host: str) -> None:
    with pytest.raises(SpacesError, match=f"cannot listen on {host}:0: "):
        async with serve_gateway(config, host=host):
            pytest.fail("a gateway at a foreign address")


async def test_the_port_can_be_reused_at_once(config: SpaceConfig) -> None:
    async with serve_gateway(config) as first, joined(first, "ada"):
        port = first.port
    async with serve_gateway(config, port=port) as second:
        assert second.port == port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_port_zero_picks_a_free_port(host: str) -> None:
    with bound_socket(host, 0) as first, bound_socket(host, 0) as second:
        ports = {one.getsockname()[1] for one in (first, second)}
    assert len(ports) == 2
    assert 0 not in ports


async def test_a_gateway_ends_with_its_tasks(config: SpaceConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_self: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(SpaceService, "keep_announcing", fail)
    with pytest.raises(SpacesError, match="internal error"), anyio.fail_after(PATIENCE_SECONDS):
        async with serve_gateway(config):
            await anyio.sleep_forever()


async def test_text_before_the_join_that_is_not_utf8_logs_no_traceback(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    def send() -> list[tuple[int, bytes]]:
        with raw_socket(gateway) as connection:
            shake_hands(connection)
            connection.sendall(frame(b"\xff") * 2)
            return list(messages(connection))

    with anyio.fail_after(PATIENCE_SECONDS):
        received = await to_thread.run_sync(send)
    assert [b"invalid_json" in data for opcode, data in received if opcode == 1][:2] == [True, True]
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_request_body_that_ends_early_logs_no_traceback(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    def send() -> None:
        with raw_socket(gateway) as connection:
            head = "POST /participants/ada/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n"
            connection.sendall(f"{head}Authorization: Bearer {gateway.token_of('ada')}\r\n\r\n{{".encode())

    for _ in range(3):
        await to_thread.run_sync(send)
    async with joined(gateway, "ada"):  # the gateway has seen the ends of those connections
        assert not [record for record in caplog.records if record.exc_info]
