"""Choosing an address to listen on before anything starts."""

import socket

import pytest
from mew_spaces.errors import PortInUse
from mew_spaces.launch.launch import ListenAddress

from mew_agent.cli.space.plan import choose_address
from mew_agent.errors import ConfigError

HERE = "127.0.0.1"


def test_free_port_is_chosen_and_left_free() -> None:
    port = choose_address(HERE, 0).port
    assert choose_address(HERE, port) == ListenAddress(HERE, port)
    with socket.create_server((HERE, port)):
        pass


def test_port_0_becomes_a_real_port() -> None:
    assert choose_address(HERE, 0).port > 0


def test_taken_port_says_what_to_do() -> None:
    with (
        socket.create_server((HERE, 0)) as taken,
        pytest.raises(PortInUse, match="in use by another program; choose another with --port"),
    ):
        choose_address(HERE, taken.getsockname()[1])


def test_foreign_address_is_refused() -> None:
    for port in (0, 1234):
        with pytest.raises(ConfigError, match="cannot listen"):
            choose_address("192.0.2.1", port)
