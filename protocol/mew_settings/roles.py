"""[pure] The roles of participants: their capabilities, and their names in an invitation.

`roles.json` has the capabilities of each. The command line, the terminal application, Python and space.yaml read it
here; the dashboard reads the same file.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

Role = Literal["agent", "tool", "person", "observer"]

ROLES_FILE: Final = Path(__file__).with_name("roles.json")

ROLE_PATTERNS: Final[Mapping[Role, tuple[dict[str, Any], ...]]] = {
    role: tuple(patterns) for role, patterns in json.loads(ROLES_FILE.read_text(encoding="utf-8")).items()
}
"""What each role may send.

An agent may see every tool and propose its calls; a person approves them. A person may do everything but administer the
space: no grants, no invitations. An observer needs no capability, because every participant receives all envelopes.
"""


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
