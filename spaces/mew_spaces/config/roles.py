"""[pure] Roles: the capabilities that agents, tools, people and observers need.

Owns what each role may send. Which participant has which role is decided in `settings`.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

Role = Literal["agent", "tool", "person", "observer"]

ROLE_PATTERNS: Final[Mapping[Role, tuple[dict[str, Any], ...]]] = {
    "agent": (
        {"kind": "chat"},
        {"kind": "chat/*"},
        {"kind": "reasoning/*"},
        {"kind": "stream/*"},
        {"kind": "participant/status"},
        {"kind": "participant/compact-done"},
        {"kind": "participant/history"},
        {"kind": "participant/undo-done"},
        {"kind": "participant/recall-done"},
        # It may see every tool and propose its calls; a person approves them.
        {"kind": "mcp/request", "payload": {"method": "*/list"}},
        {"kind": "mcp/proposal"},
        {"kind": "mcp/withdraw"},
    ),
    "tool": ({"kind": "chat"}, {"kind": "mcp/response"}, {"kind": "mcp/notification"}, {"kind": "participant/status"}),
    # A person may do everything but administer the space: no grants, no invitations.
    "person": (
        {"kind": "chat"},
        {"kind": "chat/*"},
        {"kind": "mcp/*"},
        {"kind": "participant/*"},
        {"kind": "reasoning/cancel"},
        {"kind": "stream/*"},
    ),
    "observer": (),
}
"""What each role may send. Every participant receives all envelopes, so an observer needs no capability."""
