"""[pure] The roles of participants: what each may send, and how an invitation names them.

The command line, the terminal application, Python and space.yaml read this table; the dashboard has the same one, and a
test compares them.
"""

from collections.abc import Mapping, Sequence
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
        {"kind": "participant/receipts"},
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


def invitation(participant: str, words: Sequence[str | Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the payload of `space/invite` for roles, kinds and patterns (default: a person).

    An agent and a tool may hold one connection, others several.
    """
    roles: list[Role] = [role for role in ROLE_PATTERNS if role in words] if words else ["person"]
    patterns = [{"kind": one} if isinstance(one, str) else dict(one) for one in words if one not in roles]
    return {
        "participant_id": participant,
        "initial_capabilities": [*(one for role in roles for one in ROLE_PATTERNS[role]), *patterns],
        "several_sockets": not {"agent", "tool"} & {*roles},
    }
