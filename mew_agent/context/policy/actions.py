"""[pure] Actions that a policy can decide on, and their JSON form for `mew context simulate`."""

import re
from dataclasses import dataclass, field
from typing import Any

from mew_agent.context.policy.definition import CompactionMethod, Impact, Moment


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


def action_json(action: Action) -> dict[str, Any]:
    """Return the action as a JSON object: its `type` and the fields that a log shows."""
    name = type(action).__name__.removesuffix("Action")
    shown: dict[str, Any] = {"type": re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()}
    match action:
        case CompactAction():
            shown["target_tokens"] = action.target_tokens
            shown |= {} if action.reason is None else {"reason": action.reason}
        case InjectAction(remaining=int()):
            shown["remaining"] = action.remaining
        case ErrorAction():
            shown["message"] = action.reason
        case StateChangedAction():
            shown |= {"from": action.before, "to": action.after}
        case SuggestAction(suggestion):
            shown |= {"text": suggestion.text, "impact": suggestion.impact, "tokens_saved": suggestion.tokens_saved}
        case _:
            pass
    return shown
