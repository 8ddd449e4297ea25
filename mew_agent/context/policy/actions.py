"""[pure] Actions that a policy can decide on."""

from dataclasses import dataclass, field
from typing import Literal

CompactionMethod = Literal["staged", "summarise", "drop_oldest"]
"""`staged`: clear old tool outputs, then summarise. `summarise`: only summarise. `drop_oldest`: drop old turns."""

Moment = Literal["at_once", "task_end"]
"""When to compact: before the next request, or when the answer is complete, as long as the next request fits."""

Impact = Literal["low", "medium", "high"]
Stop = Literal["abort", "error", "clear"]


Announced = Literal["near_limit", "state_changed", "approaching_redline", "redlined"]


@dataclass(frozen=True, slots=True)
class AnnounceAction:
    """Announce a nearly full window, a new level, or the redline to the space. A new level has both names.

    `approaching_redline`: the first entry into the last level before the redline since the last clear.
    """

    word: Announced
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class CompactAction:
    """Compact to at most `target_tokens`."""

    trigger: str
    target_tokens: int
    method: CompactionMethod = "staged"
    moment: Moment = "at_once"
    reason: str | None = None  # a detail of the trigger


@dataclass(frozen=True, slots=True)
class RemindAction:
    """Add or remove the owner's reminder. Its text is rendered from current figures each time."""

    owner: str
    is_shown: bool = True


@dataclass(frozen=True, slots=True)
class InjectAction:
    """Insert the level's prompt before the next generation. In a countdown, `remaining` prompts follow."""

    level: str
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class RestartAction:
    """Restart the reply within the same turn: attempt `attempt` of at most `most` in this request."""

    attempt: int
    most: int


@dataclass(frozen=True, slots=True)
class StopAction:
    """Stop: abort the reply with its figures (`abort`), fail the turn (`error`), or clear the context (`clear`).

    A clear happens before the next generation, and keeps reminders and pending user messages.
    """

    how: Stop
    reason: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A way to save tokens. `key` stays the same when the figures change."""

    key: str = field(repr=False)
    text: str
    tokens_saved: int
    impact: Impact


@dataclass(frozen=True, slots=True)
class SuggestAction:
    """A new suggestion is available."""

    suggestion: Suggestion


Notice = AnnounceAction | SuggestAction
Prompt = RemindAction | InjectAction
Intervention = CompactAction | RestartAction | StopAction
Action = Notice | Prompt | Intervention
