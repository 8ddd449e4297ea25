"""[pure] `reasoning/*`: how an agent gets to its answer, for everybody to see.

The id of `reasoning/start` is the `context` of everything that follows. The specification says `message`, the
TypeScript agent says `input` and `reasoning`/`action`/`actionInput`: we write both and read either.
"""

from typing import Any

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.payloads.base import Payload


class Start(Payload):
    """Thinking begins about this input."""

    message: str | None = None
    input: str | None = None


class Thought(Payload):
    """One step of it; `action` is `tool` or `respond`."""

    message: str | None = None
    reasoning: str | None = None
    action: str | None = None
    action_input: Any = Field(default=None, alias="actionInput")


class Conclusion(Payload):
    """Thinking ended, exactly once."""

    message: str | None = None
    cancelled: bool | None = None
    reason: str | None = None


class ReasoningCancel(Payload):
    """Ask the thinker to stop."""

    reason: str | None = None


PAYLOADS: dict[str, type[Payload]] = {
    kinds.REASONING_START: Start,
    kinds.REASONING_THOUGHT: Thought,
    kinds.REASONING_CONCLUSION: Conclusion,
    kinds.REASONING_CANCEL: ReasoningCancel,
}
