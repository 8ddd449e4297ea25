"""The MEW v0.4 wire: envelopes, kinds, payloads, capabilities and the context report. Pure, and alone importable."""

from mew_protocol.codec import StreamFrame, decode, decode_envelope, draft_of, encode_frame
from mew_protocol.context_report import ContextReport
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.errors import DecodeError, PayloadError, ProtocolError
from mew_protocol.version import PROTOCOL

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
