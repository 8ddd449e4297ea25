"""The kinds of the wire."""

import pytest
from mew_protocol import kinds
from mew_protocol.payloads import PAYLOADS


def test_every_kind_has_a_payload_model_and_no_model_is_without_kind() -> None:
    assert PAYLOADS.keys() == kinds.ALL_KINDS


def test_the_namespace_itself_is_no_kind() -> None:
    assert kinds.SYSTEM_NAMESPACE not in kinds.ALL_KINDS


@pytest.mark.parametrize(
    "kind",
    ["system/welcome", "system/error", "system/presence", "system/join", "system/new", "space/invite-ack"],
)
def test_some_kinds_are_the_gateways_alone(kind: str) -> None:
    assert kinds.is_reserved(kind)


@pytest.mark.parametrize("kind", ["system/heartbeat", "chat", "systems/x", "space/invite"])
def test_heartbeats_and_everything_else_are_not(kind: str) -> None:
    assert not kinds.is_reserved(kind)
