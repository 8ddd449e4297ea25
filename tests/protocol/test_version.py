"""Which versions are spoken."""

from mew_protocol.version import ACCEPTED_PROTOCOLS, PROTOCOL


def test_what_is_written_is_also_read() -> None:
    assert PROTOCOL == "mew/v0.4"
    assert PROTOCOL in ACCEPTED_PROTOCOLS
