"""The kinds of the wire."""

from mew_protocol import kinds
from mew_protocol.payloads import PAYLOADS


def test_every_kind_has_a_payload_model() -> None:
    declared = {value for name, value in vars(kinds).items() if name.isupper() and isinstance(value, str)}
    assert PAYLOADS.keys() == declared


def test_kinds_allowed_while_paused_exist() -> None:
    assert PAYLOADS.keys() >= kinds.ALLOWED_WHILE_PAUSED
