"""[pure] Actions that a policy can decide on."""

from dataclasses import dataclass, field
from typing import Literal

CompactionMethod = Literal["staged", "summarise", "drop_oldest"]
"""`staged`: clear old tool outputs, then summarise. `summarise`: only summarise. `drop_oldest`: drop old turns."""

Moment = Literal["at_once", "task_end"]
"""When to compact: before the next request, or when the answer is complete, as long as the next request fits."""

Impact = Literal["low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class NearLimitAction:
    """Announce to the space that the window is nearly full."""


@dataclass(frozen=True, slots=True)
class CompactAction:
    """Compact to at most `target_tokens`."""

    trigger: str
    target_tokens: int
    method: CompactionMethod = "staged"
    moment: Moment = "at_once"
    reason: str | None = None  # what the trigger alone does not say


@dataclass(frozen=True, slots=True)
class RemindAction:
    """Add the owner's reminder. Its text is rendered from current figures whenever the reminders are shown."""

    owner: str


@dataclass(frozen=True, slots=True)
class UnremindAction:
    """Remove the owner's reminder."""

    owner: str


@dataclass(frozen=True, slots=True)
class InjectAction:
    """Insert the level's prompt before the next generation. `remaining` prompts of a countdown follow it."""

    level: str
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class ClearAction:
    """Clear the context before the next generation. Reminders and pending user messages are kept."""

    reason: str


@dataclass(frozen=True, slots=True)
class RestartAction:
    """Start the reply again within the same turn: restart number `attempt` of at most `most` in this request."""

    attempt: int
    most: int


@dataclass(frozen=True, slots=True)
class AbortAction:
    """Stop the reply and report the figures."""

    reason: str


@dataclass(frozen=True, slots=True)
class ErrorAction:
    """Stop the turn with an error."""

    reason: str


@dataclass(frozen=True, slots=True)
class StateChangedAction:
    """The level differs from the last known one."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ApproachingRedlineAction:
    """The last level before the redline was entered for the first time since the last clear."""


@dataclass(frozen=True, slots=True)
class RedlinedAction:
    """The level beyond the redline was entered."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A way to save tokens. `key` identifies it while the figures change."""

    key: str = field(repr=False)
    text: str
    tokens_saved: int
    impact: Impact


@dataclass(frozen=True, slots=True)
class SuggestAction:
    """A new suggestion is available."""

    suggestion: Suggestion


Notice = NearLimitAction | StateChangedAction | ApproachingRedlineAction | RedlinedAction | SuggestAction
Prompt = RemindAction | UnremindAction | InjectAction
Intervention = CompactAction | ClearAction | RestartAction | AbortAction | ErrorAction
Action = Notice | Prompt | Intervention
