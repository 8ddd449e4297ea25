"""The MEW v0.4 wire protocol: envelopes, kinds, payloads, capabilities and the context report.

Pure: it only needs pydantic, and imports nothing else of this project.
"""

from mew_protocol.codec import StreamFrame, decode, decode_envelope, encode_frame, read_draft
from mew_protocol.context_report import ContextReport
from mew_protocol.envelope import PROTOCOL, Draft, Envelope
from mew_protocol.errors import DecodeError, PayloadError, ProtocolError

__all__ = [
    "PROTOCOL",
    "ContextReport",
    "DecodeError",
    "Draft",
    "Envelope",
    "PayloadError",
    "ProtocolError",
    "StreamFrame",
    "decode",
    "decode_envelope",
    "encode_frame",
    "read_draft",
]
