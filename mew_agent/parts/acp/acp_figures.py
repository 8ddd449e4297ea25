"""[pure] Reads the figures of an ACP agent, and decides when they are valid.

Usage counts only at the end of a main turn. From the start of a compaction to the end of the next main turn, the size
is unknown. Sends nothing: returns the figures to report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mew_protocol.context_report import Spending
from mew_protocol.json_values import objects_at, text_at, value_at

from mew_agent.model.usage import LARGEST_WINDOW, positive_count
from mew_agent.parts.acp.profiles import AcpProfile, CompactionStep

_MOST_SPENT: Final = 1e15
"""A larger cost is none, in any currency."""

_CURRENCY_CHARS: Final = 20
_MOST_CALLS: Final = 100
"""More full windows are not spent in one turn."""

_STEPS: Final[Mapping[str, CompactionStep]] = {
    "in_progress": "started",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "failed",
}


@dataclass(frozen=True, slots=True)
class AgentUsage:
    """An agent's report of its context: its tokens, and the window size if known.

    `is_abandoned`: its turn was cancelled, so the figure may be the agent's own estimate.
    """

    tokens: int
    window: int | None = None
    is_abandoned: bool = False


def usage_in(update: Mapping[str, Any], profile: AcpProfile) -> AgentUsage | None:
    """Return the usage in a `session/update`; None without one. Agents send 0 before any call."""
    if update.get("sessionUpdate") == "usage_update":
        tokens, size = _plausible(update.get("used")), _plausible(update.get("size"))
        window = None if not size else round(size * 100 / profile.window_percent)
        return AgentUsage(tokens, window) if tokens else None
    key = "inputTokens" if profile.used == "prompt" else "totalTokens"
    tokens = _plausible(value_at(update, "_meta", "usage", key))
    return AgentUsage(tokens) if tokens else None


def _plausible(value: object, most: int = LARGEST_WINDOW) -> int | None:
    """Return a count above 0 that a context can have."""
    count = positive_count(value)
    return count if count is not None and count <= most else None


def spent_tokens(usage: object) -> int:
    """Return the total tokens of a turn's or call's usage; 0 if it has none. A turn sums its calls."""
    return _plausible(value_at(usage, "totalTokens"), _MOST_CALLS * LARGEST_WINDOW) or 0


def spending_in(update: Mapping[str, Any]) -> Spending | None:
    """Return the cost of the session so far; None if unknown. Agents send 0 for models without a price."""
    amount, currency = value_at(update, "cost", "amount"), value_at(update, "cost", "currency")
    if isinstance(amount, int | float) and 0 < amount <= _MOST_SPENT and 0 < len(text_at(currency)) <= _CURRENCY_CHARS:
        return Spending(amount=round(amount, 8), currency=currency)
    return None


def compaction_step(update: Mapping[str, Any], profile: AcpProfile) -> CompactionStep | None:
    """Return the progress of a compaction in a `session/update`; None if it reports none."""
    if update.get("sessionUpdate") == "compaction_update":
        return _STEPS.get(str(update.get("status")))
    if update.get("sessionUpdate") == "agent_message_chunk":
        text = str(value_at(update, "content", "text") or "")
        return next((step for start, step in profile.compaction_texts.items() if text.startswith(start)), None)
    return None


def window_in(session: Mapping[str, Any]) -> int | None:
    """Return the current model's window in the answer to `session/new`; None without one."""
    current = value_at(session, "models", "currentModelId")
    listed = objects_at(session, "models", "availableModels")
    found = next((model for model in listed if model.get("modelId") == current), None)
    return _plausible(value_at(found, "_meta", "contextLimit"))


class UnreportedCompactions:
    """Finds compactions that an agent does not report, in the messages of a turn.

    An agent ends its turn with a message without a tool call. If another message follows, it is the summary; the
    message after that continues the turn.
    """

    def __init__(self) -> None:
        self._message: object = None
        self._count = 0

    def turn_started(self) -> None:
        """Note that a prompt is sent."""
        self._message, self._count = None, 0

    def has_ended(self, update: Mapping[str, Any]) -> bool:
        """Return True if this update is the first one after a compaction."""
        match update.get("sessionUpdate"):
            case "tool_call":
                self._count = 0
            case "agent_message_chunk" if update.get("messageId") != self._message:
                self._message = update.get("messageId")
                self._count += 1
                return self._count > 1 and self._count % 2 == 1
            case _:
                pass
        return False


class UsageTracker:
    """Follows the turns of one session. Each method returns the usage to report now, or None."""

    def __init__(self, profile: AcpProfile) -> None:
        self._profile = profile
        self._is_main = False
        self._has_compacted = False
        self._was_abandoned = False
        self._seen: AgentUsage | None = None
        self.was_measurable = False
        """Whether the turn that ended last was a main turn without a compaction."""
        self._accepts_late = False
        """Whether a figure that arrives now belongs to an ended main turn, with an agent that sends it late."""

    def turn_started(self, *, is_main: bool) -> None:
        """Note that a prompt is sent. Only figures of main turns measure the kept context."""
        self._is_main, self._has_compacted, self._seen = is_main, False, None

    def compacted(self) -> None:
        """Note that a compaction began or was requested: no figure of this turn or before it is valid."""
        self._has_compacted, self._seen, self._accepts_late = True, None, False

    def reported(self, usage: AgentUsage) -> AgentUsage | None:
        """Note the reported usage: valid at the end of the turn, or now if it belongs to an ended one."""
        if not self._profile.usage_is_late:
            self._seen = usage
            return None
        return replace(usage, is_abandoned=self._was_abandoned) if self._accepts_late else None

    def turn_ended(self, *, is_abandoned: bool) -> AgentUsage | None:
        """Note that the agent has answered a prompt."""
        self._was_abandoned = is_abandoned
        self.was_measurable = self._is_main and not self._has_compacted
        if not self.was_measurable:
            return None
        self._is_main = False
        if self._profile.usage_is_late:
            self._accepts_late = True
        return None if self._seen is None else replace(self._seen, is_abandoned=is_abandoned)
