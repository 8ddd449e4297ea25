"""A model's tools for its own context: reminders, and clearing its mind.

The mind is cleared once all results of a reply have arrived, unless another call failed.
"""

from collections.abc import Sequence

from mew_agent.context.policy import level_of
from mew_agent.context.reminders import ContinuationPackage
from mew_agent.conversation import texts
from mew_agent.conversation.context_state import ContextState
from mew_agent.model.interface import ToolCall
from mew_agent.participant.messenger import timestamp
from mew_agent.tools.results import ToolResult
from mew_agent.tools.sources import CallContext, FunctionTools

CLEAR_MIND = "clear_mind"


class ContextTools(FunctionTools):
    """A source of tools (see `ToolSource`) for the reminders of one context."""

    def __init__(self, state: ContextState) -> None:
        self._state = state
        self._requested: dict[str, str] = {}
        """The notes to keep after a clear, by the id of the call that requests it."""
        super().__init__(self.add_reminder, self.update_reminder, self.delete_reminder, self.clear_mind)

    def has(self, name: str) -> bool:
        """Return whether a tool is one of these."""
        return name in self._toolbox.tools

    async def run(self, call: ToolCall, context: CallContext | None = None) -> ToolResult:
        """Carry out one call. `clear_mind` is only recorded; `confirm_clear` replaces its result."""
        result = await super().run(call, context)
        if call.name == CLEAR_MIND and not result.is_error:
            self._requested[call.id] = result.text.strip()
            return ToolResult(texts.CANCELLED_RESULT)
        return result

    def confirm_clear(self, calls: Sequence[ToolCall], results: dict[str, ToolResult]) -> bool:
        """Return whether to clear the mind, once all calls of a reply have results."""
        ids = {call.id for call in calls}
        requested = {name: note for name, note in self._requested.items() if name in ids}
        self._requested = {}  # also those of a cancelled reply
        if not requested:
            return False
        # After a clear, the model could not handle the failure of another call of the same reply.
        others = [(call.name, results.get(call.id)) for call in calls if call.id not in requested]
        failed = [name for name, result in others if result is None or result.is_error]
        if failed:
            refusal = texts.CLEAR_REFUSED.format(siblings=", ".join(dict.fromkeys(failed)))
            results.update((call_id, ToolResult(refusal, is_error=True)) for call_id in requested)
            return False
        results.update((call_id, ToolResult(texts.CLEARED_RESULT)) for call_id in requested)
        for note in filter(None, requested.values()):
            package = ContinuationPackage("clear_mind", level=None)
            self._state.reminders.add(note, at=timestamp(), package=package)
        return True

    # -- names, arguments and docstrings are what the model sees -----------------------------------------

    async def add_reminder(self, content: str) -> str:
        """Keep a note for yourself. Reminders are part of every request and survive a cleared mind."""
        made = self._state.reminders.add(content, at=timestamp(), package=self._package())
        return f"Kept as {made.id}."

    async def update_reminder(self, reminder_id: str, content: str) -> str:
        """Replace the text of one of your reminders."""
        self._state.reminders.update(reminder_id, content, package=self._package())
        return f"{reminder_id} is updated."

    async def delete_reminder(self, reminder_id: str) -> str:
        """Delete one of your reminders."""
        self._state.reminders.delete(reminder_id)
        return f"{reminder_id} is deleted."

    async def clear_mind(self, reminder_content: str = "") -> str:
        """Empty your context and begin a new course with your reminders; the given text becomes one of them."""
        return reminder_content

    def _package(self) -> ContinuationPackage | None:
        """Return the mark of a new reminder: above the healthy level, it is a continuation package."""
        tracker = self._state.tracker
        level, severity = level_of(tracker.policy, tracker.snapshot())
        return ContinuationPackage("context_health", level) if severity else None
