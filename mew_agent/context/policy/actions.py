"""[pure] What a policy may decide, and the JSON form of it that `mew context simulate` prints."""

from dataclasses import dataclass, field
from typing import Any, assert_never

from mew_agent.context.policy.rules import CompactionMethod, Impact


@dataclass(frozen=True, slots=True)
class NearLimitAction:
    """Tell everybody once that the window is nearly full."""


@dataclass(frozen=True, slots=True)
class CompactAction:
    """Compact now. `target_tokens` is what should remain at most, `ceiling_tokens` what must."""

    trigger: str
    target_tokens: int
    ceiling_tokens: int
    method: CompactionMethod = "staged"


@dataclass(frozen=True, slots=True)
class RemindAction:
    """Add the owner's reminder; its text is rendered from the newest snapshot whenever it is shown."""

    owner: str


@dataclass(frozen=True, slots=True)
class UnremindAction:
    """Drop the owner's reminder."""

    owner: str


@dataclass(frozen=True, slots=True)
class InjectAction:
    """Put this level's prompt before the next generation. In a countdown it says how many are left after it."""

    level: str
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class ClearAction:
    """Start over without asking anybody; reminders and a waiting message of a person are carried over."""

    reason: str


@dataclass(frozen=True, slots=True)
class RestartAction:
    """Begin the reply again, in the same answer. The `attempt`-th of at most `most` in this request."""

    attempt: int
    most: int


@dataclass(frozen=True, slots=True)
class AbortAction:
    """End the reply where it is."""

    reason: str


@dataclass(frozen=True, slots=True)
class ErrorAction:
    """It cannot go on like this; `problem` says why."""

    problem: str


@dataclass(frozen=True, slots=True)
class StateChangedAction:
    """Another level than the last one that was known."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ApproachingRedlineAction:
    """The last level before the redline was entered for the first time."""


@dataclass(frozen=True, slots=True)
class RedlinedAction:
    """The redline was crossed."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A way to save tokens. `key` stays the same while the saving grows."""

    key: str = field(repr=False)
    text: str
    tokens_saved: int
    impact: Impact


@dataclass(frozen=True, slots=True)
class SuggestAction:
    """A way to save tokens became available."""

    suggestion: Suggestion


Action = (
    NearLimitAction
    | CompactAction
    | RemindAction
    | UnremindAction
    | InjectAction
    | ClearAction
    | RestartAction
    | AbortAction
    | ErrorAction
    | StateChangedAction
    | ApproachingRedlineAction
    | RedlinedAction
    | SuggestAction
)

_NAMES: dict[type[Action], str] = {
    NearLimitAction: "near_limit",
    CompactAction: "compact",
    RemindAction: "remind",
    UnremindAction: "unremind",
    InjectAction: "inject",
    ClearAction: "clear",
    RestartAction: "restart",
    AbortAction: "abort",
    ErrorAction: "error",
    StateChangedAction: "state_changed",
    ApproachingRedlineAction: "approaching_redline",
    RedlinedAction: "redlined",
    SuggestAction: "suggest",
}


def action_json(action: Action) -> dict[str, Any]:
    """The action as a JSON object: `type`, and what a reader of that type needs."""
    shown: dict[str, Any] = {"type": _NAMES[type(action)]}
    match action:
        case CompactAction():
            shown["target_tokens"] = action.target_tokens
        case InjectAction():
            if action.remaining is not None:
                shown["remaining"] = action.remaining
        case ErrorAction():
            shown["message"] = action.problem
        case StateChangedAction():
            shown |= {"from": action.before, "to": action.after}
        case SuggestAction(suggestion):
            shown |= {
                "text": suggestion.text,
                "impact": suggestion.impact,
                "tokens_saved": suggestion.tokens_saved,
            }
        case NearLimitAction() | RemindAction() | UnremindAction() | ClearAction() | RestartAction() | AbortAction():
            pass
        case ApproachingRedlineAction() | RedlinedAction():
            pass
        case _:
            assert_never(action)
    return shown
