"""The address of a listener, as clients of this machine write it."""

from mew_listener.listen_address import ListenAddress, in_url


def test_an_ipv6_host_is_in_brackets() -> None:
    assert (in_url("::1"), in_url("127.0.0.1")) == ("[::1]", "127.0.0.1")


def test_a_wildcard_address_is_reached_over_loopback() -> None:
    assert ListenAddress("0.0.0.0", 1).http == "http://127.0.0.1:1"
    assert ListenAddress("::", 1).ws == "ws://[::1]:1"
    assert ListenAddress("localhost", 1).http == "http://localhost:1"


def test_a_certificate_may_be_for_another_name() -> None:
    assert ListenAddress("::1", 1, has_tls=True).ws == "wss://[::1]:1"
    assert ListenAddress("::1", 1, has_tls=True, name="mew.example.org").http == "https://mew.example.org:1"
