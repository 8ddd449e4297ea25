"""The server under the gateway: the address it listens on."""

import pytest
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.errors import PortInUse, SpacesError
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from mew_spaces.gateway.server import bound_socket, in_url

from tests.support.gateway_client import joined


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


def test_an_ipv6_host_is_in_brackets_in_a_url() -> None:
    assert (in_url("::1"), in_url("127.0.0.1")) == ("[::1]", "127.0.0.1")
