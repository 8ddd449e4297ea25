"""The kinds of the wire."""

import pytest

from protocol import kinds
from protocol.payloads import PAYLOADS


def test_every_kind_has_a_payload_model_and_no_model_is_without_kind() -> None:
    assert PAYLOADS.keys() == kinds.ALL_KINDS


def test_the_namespace_itself_is_no_kind() -> None:
    assert kinds.SYSTEM_NAMESPACE not in kinds.ALL_KINDS


@pytest.mark.parametrize("kind", ["system/welcome", "system/error", "system/presence", "system/register", "system/new"])
def test_system_kinds_are_the_gateways(kind: str) -> None:
    assert kinds.is_reserved(kind)


@pytest.mark.parametrize("kind", ["system/join", "system/heartbeat", "chat", "systems/x"])
def test_joins_heartbeats_and_everything_else_are_not(kind: str) -> None:
    assert not kinds.is_reserved(kind)
