"""One call to the model at a time, from request to reply, that somebody else may interrupt.

Owns the interrupting, and that every text of a reply can be stored and sent. It knows no history, no figures and
not what a call is for.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import assert_never

import anyio

from mew_agent.errors import MewAgentError, ModelStreamCut
from mew_agent.model.interface import Model, ModelEvent, ModelReply, ModelRequest, ReasoningDelta, TextDelta, ToolCall
from mew_agent.tools.results import well_formed

Listener = Callable[[ModelEvent], Awaitable[None]]


class CallInterrupted(MewAgentError):
    """A control could not wait any longer for this call; make it again."""


class ModelCaller:
    """Runs calls to one model. The caller sees to it that they do not overlap."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._scope: anyio.CancelScope | None = None

    def interrupt(self) -> None:
        """Cancel the call that is running, at the server too; without one nothing happens."""
        if self._scope is not None:
            self._scope.cancel()

    async def run(self, request: ModelRequest, listen: Listener | None = None) -> ModelReply:
        """Make one call; `listen` hears every event of it. Raises `CallInterrupted` or a `ModelError`."""
        reply: ModelReply | None = None
        try:
            with anyio.CancelScope() as self._scope:
                async with aclosing(self._model.stream(request)) as events:
                    async for event in events:
                        sound = _well_formed(event)
                        if isinstance(sound, ModelReply):
                            reply = sound
                        if listen is not None:
                            await listen(sound)
                if reply is None:
                    identity = self._model.identity
                    raise ModelStreamCut(identity.endpoint, identity.model, "no reply")
        finally:
            self._scope = None
        if reply is None:
            raise CallInterrupted("a control interrupted this call")
        return reply


def _well_formed(event: ModelEvent) -> ModelEvent:
    """The event without half characters, which a model may write and nobody can send."""
    match event:
        case TextDelta(text):
            return TextDelta(well_formed(text))
        case ReasoningDelta(text):
            return ReasoningDelta(well_formed(text))
        case ModelReply():
            calls = tuple(
                ToolCall(well_formed(call.id), well_formed(call.name), well_formed(call.arguments))
                for call in event.tool_calls
            )
            text, thinking = well_formed(event.text), well_formed(event.reasoning_text)
            return replace(event, text=text, reasoning_text=thinking, tool_calls=calls)
        case _:
            assert_never(event)
