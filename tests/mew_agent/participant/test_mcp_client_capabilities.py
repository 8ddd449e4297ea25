"""Capabilities for certain arguments, checked before the arguments are chosen."""

from typing import Any

import pytest
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Envelope

from mew_agent.participant.mcp_client import CHOSEN_BY_CALLER


def call(kind: str = "mcp/request", to: str = "files", **params: Any) -> Envelope:
    payload = {"method": "tools/call", "params": params}
    return Envelope.write(kind, id="1", ts="t", sender="me", payload=payload, to=(to,))


PUBLIC = {"path": "/public/**"}


@pytest.mark.parametrize(
    "payload",
    [
        {"method": "tools/call", "params": {"name": "read", "arguments": PUBLIC}},
        {"method": "tools/call", "params": {"arguments": PUBLIC}},
        {"method": "tools/*", "params": {"name": ["read", "list"], "arg*": PUBLIC}},
        {"params": [{"name": "write", "arguments": {}}, {"name": "read", "arguments": PUBLIC}]},
        {"$.params.name": "read", "$.params.arguments.path": "/public/**"},
        {"params": {"name": "read", "**": "/public/**"}},
        {"$..path": "/public/**"},
    ],
)
def test_capability_for_certain_arguments_covers_some_call(payload: dict[str, Any]) -> None:
    patterns = [{"kind": "mcp/request", "payload": payload}]
    assert not CapabilitySet(patterns).allows(call(name="read"))
    assert CapabilitySet(patterns).ignoring(CHOSEN_BY_CALLER).allows(call(name="read"))


@pytest.mark.parametrize(
    ("pattern", "requested"),
    [
        ({"payload": {"params": {"name": "read", "arguments": PUBLIC}}}, call(name="write")),
        ({"payload": {"method": "resources/*", "params": {"arguments": PUBLIC}}}, call(name="read")),
        ({"to": ["notes"], "payload": {"params": {"arguments": PUBLIC}}}, call(name="read")),
        ({"payload": {"params": {"arguments": PUBLIC}}}, call("mcp/proposal", name="read")),
        ({"payload": {"$.params.name": "read"}}, call(name="write")),
    ],
)
def test_other_conditions_of_a_capability_still_apply(pattern: dict[str, Any], requested: Envelope) -> None:
    assert not CapabilitySet([{"kind": "mcp/request", **pattern}]).ignoring(CHOSEN_BY_CALLER).allows(requested)


def test_capability_without_a_payload_is_unchanged() -> None:
    held = CapabilitySet([{"kind": "chat"}, {"kind": "mcp/*", "to": ["files"]}]).ignoring(CHOSEN_BY_CALLER)
    assert held.allows(call(name="read"))
    assert not held.allows(call(to="notes", name="read"))
