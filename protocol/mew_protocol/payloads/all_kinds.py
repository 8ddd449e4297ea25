"""[pure] The models of all kinds. A program that reads a few payloads imports their modules alone."""

from mew_protocol.payloads import capability, chat, mcp, participant, reasoning, space, stream, system  # noqa: F401
from mew_protocol.payloads.base import PAYLOADS

__all__ = ["PAYLOADS"]
