"""[pure] The payload models of all kinds, one module for each namespace.

`read_payload` reads a payload as a model, `read_or_none` one that may be invalid; `all_kinds.PAYLOADS` maps kinds to
models. All models keep unknown keys.
"""

from mew_protocol.payloads.base import Payload, read_or_none, read_payload

__all__ = ["Payload", "read_or_none", "read_payload"]
