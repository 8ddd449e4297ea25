"""[pure] The payload models of all kinds, one module for each namespace.

`PAYLOADS` maps kinds to models, `read_payload` applies one. All models keep unknown keys.
"""

from mew_protocol.payloads import capability, chat, mcp, participant, reasoning, space, stream, system
from mew_protocol.payloads.base import Payload, read_payload

__all__ = ["PAYLOADS", "Payload", "read_payload"]

PAYLOADS: dict[str, type[Payload]] = {
    **system.PAYLOADS,
    **mcp.PAYLOADS,
    **capability.PAYLOADS,
    **space.PAYLOADS,
    **chat.PAYLOADS,
    **reasoning.PAYLOADS,
    **participant.PAYLOADS,
    **stream.PAYLOADS,
}
