"""The MEW v0.4 wire: envelopes, kinds, payloads, capabilities and the context report. Pure, and alone importable."""

from protocol.codec import StreamFrame, decode, decode_envelope, draft_of, encode_frame
from protocol.context_report import ContextReport
from protocol.envelope import Draft, Envelope
from protocol.errors import DecodeError, PayloadError, ProtocolError
from protocol.version import PROTOCOL

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
    "draft_of",
    "encode_frame",
]
