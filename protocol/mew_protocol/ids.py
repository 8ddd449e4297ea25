"""[pure] Names of things on the wire.

Ids come from outside (callers make them); this module only types and checks them.
"""

import re
from typing import NewType

ParticipantId = NewType("ParticipantId", str)
SpaceId = NewType("SpaceId", str)
EnvelopeId = NewType("EnvelopeId", str)
StreamId = NewType("StreamId", str)

GATEWAY = ParticipantId("system:gateway")
"""Sender of everything the gateway says itself."""

STREAM_GATEWAY = ParticipantId("gateway")
"""Sender of stream/open and its acknowledgements, and the address of stream/request: the wire's older name."""

MAX_ID_LENGTH = 128

_FORBIDDEN_IN_ID = re.compile(r"[/\\\x00-\x1f\x7f]|\.\.")


def id_problem(text: str, *, max_length: int = MAX_ID_LENGTH) -> str | None:
    """Say what is wrong with a participant or space id, or None.

    Ids become file names (`.mew/tokens/<id>.token`) and parts of URLs, so separators, `..` and control
    characters are refused; a name under `system:` belongs to the gateway.
    """
    if not text.strip():
        return "an id must not be empty"
    if len(text) > max_length:
        return f"an id has at most {max_length} characters, this one has {len(text)}"
    if _FORBIDDEN_IN_ID.search(text):
        return "invalid characters: an id must not contain '/', '\\', '..' or control characters"
    if text == STREAM_GATEWAY or text.startswith("system:"):
        return f"'{text}' is reserved for the gateway"
    return None
