"""[pure] The payload models of all kinds, one module for each namespace.

`PAYLOADS` maps kinds to models; `read_payload` reads a payload as a model. All models keep unknown keys.
"""

from mew_protocol.payloads import capability, chat, mcp, participant, reasoning, space, stream, system  # noqa: F401
from mew_protocol.payloads.base import PAYLOADS, Payload, read_payload

__all__ = ["PAYLOADS", "Payload", "read_payload"]
