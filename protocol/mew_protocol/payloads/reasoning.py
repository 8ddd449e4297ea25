"""[pure] `reasoning/*`: how an agent arrives at its answer, visible to every member.

The id of `reasoning/start` is the `context` of all following envelopes. The specification uses `message`; the
TypeScript agent uses `input` and `reasoning`, `action`, `actionInput`. We write both forms and read either.
"""

from typing import Any

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.payloads.base import Payload


class Start(Payload, kind=kinds.REASONING_START):
    """Reasoning about this input starts."""

    message: str | None = None
    input: str | None = None


class Thought(Payload, kind=kinds.REASONING_THOUGHT):
    """One step of the reasoning; `action` is `tool` or `respond`."""

    message: str | None = None
    reasoning: str | None = None
    action: str | None = None
    action_input: Any = Field(default=None, alias="actionInput")


class Conclusion(Payload, kind=kinds.REASONING_CONCLUSION):
    """The reasoning ended. Sent exactly once."""

    message: str | None = None
    cancelled: bool | None = None
    reason: str | None = None


class ReasoningCancel(Payload, kind=kinds.REASONING_CANCEL):
    """Ask the agent to stop its reasoning."""

    reason: str | None = None
