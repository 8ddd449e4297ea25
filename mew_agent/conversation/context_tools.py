"""The tools by which a model keeps its own context in order: reminders, and clearing its mind.

Owns their meaning and the rule that a mind is not cleared beside a failed call. What clearing does to the
conversation is done by whoever holds it, when all results of a reply are there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mew_agent.context.reminders import ContinuationPackage
from mew_agent.conversation import texts
from mew_agent.conversation.policy_executor import Remedies
from mew_agent.model.interface import ToolCall, ToolSpec
from mew_agent.participant.messenger import timestamp
from mew_agent.tools.functions import Tool, Toolbox
from mew_agent.tools.results import ToolResult
from mew_agent.tools.sources import CallContext

CLEAR_MIND = "clear_mind"


@dataclass(frozen=True, slots=True)
class _ClearRequest:
    call_id: str
    note: str


class ContextTools:
    """A source of tools (see `agent_tools.ToolSource`) over one agent's reminders."""

    def __init__(self, remedies: Remedies) -> None:
        self._remedies = remedies
        self._asked: list[_ClearRequest] = []
        self._toolbox = Toolbox()
        for function in (self.add_reminder, self.update_reminder, self.delete_reminder, self.clear_mind):
            self._toolbox.add(Tool.of(function))

    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told."""
        return self._toolbox.specs()

    def has(self, name: str) -> bool:
        """Whether a tool is one of these."""
        return name in self._toolbox.tools

    async def run(self, call: ToolCall, context: CallContext | None = None) -> ToolResult:
        """Carry out one call. `clear_mind` is only noted: `verdict` says what becomes of it."""
        result = await self._toolbox.run(call.name, call.arguments)
        if call.name == CLEAR_MIND and not result.is_error:
            self._asked.append(_ClearRequest(call.id, result.text.strip()))
            return ToolResult(texts.CLEARED_RESULT)
        return result

    def verdict(self, calls: Sequence[ToolCall], results: dict[str, ToolResult]) -> bool:
        """Whether the mind is to be cleared now that all calls of one reply have results.

        Beside a failed call it is not, in whatever order they came; its result then says so. Otherwise its note has
        become a reminder.
        """
        asked, self._asked = self._asked, []
        if not asked:
            return False
        clearing = {one.call_id for one in asked}
        failed = [call.name for call in calls if call.id not in clearing and _has_failed(results, call)]
        if failed:
            refusal = texts.REFUSED_CLEAR.format(siblings=", ".join(dict.fromkeys(failed)))
            results.update((one.call_id, ToolResult(refusal, is_error=True)) for one in asked)
            return False
        for one in asked:
            if one.note:
                package = ContinuationPackage("clear_mind", level=None)
                self._remedies.reminders.add(one.note, at=timestamp(), package=package)
        self._remedies.keep_standing()
        return True

    # -- what the model sees: names, arguments and these sentences ----------------------------------------

    async def add_reminder(self, content: str) -> str:
        """Keep a note for yourself. Reminders are shown in every request and outlive a cleared mind."""
        made = self._remedies.reminders.add(content, at=timestamp(), package=self._remedies.package)
        self._remedies.keep_standing()
        return f"Kept as {made.id}."

    async def update_reminder(self, reminder_id: str, content: str) -> str:
        """Replace the text of one of your reminders."""
        self._remedies.reminders.update(reminder_id, content, package=self._remedies.package)
        self._remedies.keep_standing()
        return f"{reminder_id} is updated."

    async def delete_reminder(self, reminder_id: str) -> str:
        """Forget one of your reminders."""
        self._remedies.reminders.delete(reminder_id)
        self._remedies.keep_standing()
        return f"{reminder_id} is deleted."

    async def clear_mind(self, reminder_content: str = "") -> str:
        """Empty your context and begin a new course with your reminders; the given text becomes one of them."""
        return reminder_content


def _has_failed(results: Mapping[str, ToolResult], call: ToolCall) -> bool:
    """A call without a result counts as failed."""
    result = results.get(call.id)
    return result is None or result.is_error
