"""Choosing an address to listen on before anything starts."""

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from mew_listener.listen_address import ListenAddress
from mew_spaces.errors import PortInUse

from mew_agent.cli.app.addresses import certified_host, choose_address, warn_if_reachable
from mew_agent.cli.space.plan import StartOptions, make_launch_plan
from mew_agent.errors import ConfigError
from tests.support.certificates import certified

HERE = "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "warned"),
    [("127.0.0.1", False), ("127.0.0.2", False), ("::1", False), ("0.0.0.0", True), ("10.0.0.7", True)],
)
def test_servers_warn_of_addresses_that_other_machines_reach(
    host: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_if_reachable(host, "anyone there can use it")
    assert (f"other machines can reach {host}: anyone there can use it" in capsys.readouterr().err) == warned


def test_free_port_is_chosen_and_left_free() -> None:
    port = choose_address(HERE, 0).port
    assert choose_address(HERE, port) == ListenAddress(HERE, port)
    with socket.create_server((HERE, port)):
        pass


def test_port_0_becomes_a_real_port() -> None:
    assert choose_address(HERE, 0).port > 0


def test_port_in_use_is_reported_with_advice() -> None:
    with (
        socket.create_server((HERE, 0)) as taken,
        pytest.raises(PortInUse, match="in use by another program; choose another with --port"),
    ):
        choose_address(HERE, taken.getsockname()[1])


def test_taken_default_port_gives_the_next_free_one(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: s}\n")
    with ExitStack() as taken:
        for port in (8080, 8081):
            with suppress(OSError):  # in use by another program: as good
                taken.enter_context(socket.create_server((HERE, port)))
        plan = make_launch_plan(StartOptions(folder=tmp_path), {})
        assert 8081 < plan.launch.address.port < 8090
        used = plan.launch.address.port
        assert plan.notices == (f"port 8080 is in use by another program; the gateway listens on {used}",)
        with pytest.raises(PortInUse):
            make_launch_plan(StartOptions(folder=tmp_path, port=8080), {})


def test_foreign_address_is_refused() -> None:
    for port in (0, 1234):
        with pytest.raises(ConfigError, match="cannot listen"):
            choose_address("192.0.2.1", port)


@pytest.mark.parametrize(
    ("host", "names", "expected"),
    [
        ("127.0.0.1", ("127.0.0.1", "localhost"), "127.0.0.1"),
        ("127.0.0.1", ("localhost",), "localhost"),
        ("0.0.0.0", ("*.example.org", "mew.example.org"), "mew.example.org"),
        ("mew.example.org", ("*.example.org",), "mew.example.org"),
    ],
)
def test_programs_connect_to_a_host_that_the_certificate_is_for(
    host: str, names: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    assert certified_host(certified(tmp_path, *names).files, ListenAddress(host, 1)) == expected


def test_certificate_for_other_hosts_is_refused_before_the_start(tmp_path: Path) -> None:
    files = certified(tmp_path, "mew.example.org").files
    with pytest.raises(ConfigError, match=r"cert\.pem: is for mew\.example\.org, but programs .* connect to 127"):
        certified_host(files, ListenAddress("127.0.0.1", 1))
