"""The kinds of the wire."""

from mew_protocol import kinds
from mew_protocol.payloads.all_kinds import PAYLOADS


def test_every_kind_of_an_envelope_has_a_payload_model() -> None:
    assert PAYLOADS.keys() == {kind for kind in kinds.KNOWN if not kind.startswith("program/")}


def test_kinds_allowed_while_paused_exist() -> None:
    assert PAYLOADS.keys() >= kinds.ALLOWED_WHILE_PAUSED
