"""[pure] The models of all kinds. A program that reads few payloads imports only their modules."""

from mew_protocol.payloads import capability, chat, mcp, participant, reasoning, space, stream, system  # noqa: F401
from mew_protocol.payloads.base import PAYLOADS

__all__ = ["PAYLOADS"]
