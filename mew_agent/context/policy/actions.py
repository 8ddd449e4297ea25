"""[pure] What a policy may decide, and the JSON form of it that `mew context simulate` prints."""

from dataclasses import dataclass, field
from typing import Any, assert_never

from mew_agent.context.policy.rules import CompactionMethod, Impact


@dataclass(frozen=True, slots=True)
class AnnounceNearLimit:
    """Tell everybody once that the window is nearly full."""


@dataclass(frozen=True, slots=True)
class Compact:
    """Compact now. `target_tokens` is what should remain at most, `ceiling_tokens` what must."""

    trigger: str
    target_tokens: int
    ceiling_tokens: int
    method: CompactionMethod = "staged"


@dataclass(frozen=True, slots=True)
class Remind:
    """Add the owner's reminder; its text is rendered from the newest snapshot whenever it is shown."""

    owner: str


@dataclass(frozen=True, slots=True)
class Unremind:
    """Drop the owner's reminder."""

    owner: str


@dataclass(frozen=True, slots=True)
class Inject:
    """Put this level's prompt before the next generation. In a countdown it says how many are left after it."""

    level: str
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class Clear:
    """Start over without asking anybody; reminders and a waiting message of a person are carried over."""

    reason: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Begin the reply again, in the same answer. The `attempt`-th of at most `most` in this request."""

    attempt: int
    most: int


@dataclass(frozen=True, slots=True)
class Abort:
    """End the reply where it is."""

    reason: str


@dataclass(frozen=True, slots=True)
class Error:
    """It cannot go on like this; `problem` says why."""

    problem: str


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Another level than the last one that was known."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ApproachingRedline:
    """The last level before the redline was entered for the first time."""


@dataclass(frozen=True, slots=True)
class Redlined:
    """The redline was crossed."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A way to save tokens. `key` stays the same while the saving grows."""

    key: str = field(repr=False)
    text: str
    tokens_saved: int
    impact: Impact


@dataclass(frozen=True, slots=True)
class Suggest:
    """A way to save tokens became available."""

    suggestion: Suggestion


Action = (
    AnnounceNearLimit
    | Compact
    | Remind
    | Unremind
    | Inject
    | Clear
    | Restart
    | Abort
    | Error
    | StateChanged
    | ApproachingRedline
    | Redlined
    | Suggest
)

_NAMES: dict[type[Action], str] = {
    AnnounceNearLimit: "near_limit",
    Compact: "compact",
    Remind: "remind",
    Unremind: "unremind",
    Inject: "inject",
    Clear: "clear",
    Restart: "restart",
    Abort: "abort",
    Error: "error",
    StateChanged: "state_changed",
    ApproachingRedline: "approaching_redline",
    Redlined: "redlined",
    Suggest: "suggest",
}


def action_json(action: Action) -> dict[str, Any]:
    """The action as a JSON object: `type`, and what a reader of that type needs."""
    shown: dict[str, Any] = {"type": _NAMES[type(action)]}
    match action:
        case Compact():
            shown["target_tokens"] = action.target_tokens
        case Inject():
            if action.remaining is not None:
                shown["remaining"] = action.remaining
        case Error():
            shown["message"] = action.problem
        case StateChanged():
            shown |= {"from": action.before, "to": action.after}
        case Suggest(suggestion):
            shown |= {
                "text": suggestion.text,
                "impact": suggestion.impact,
                "tokens_saved": suggestion.tokens_saved,
            }
        case AnnounceNearLimit() | Remind() | Unremind() | Clear() | Restart() | Abort():
            pass
        case ApproachingRedline() | Redlined():
            pass
        case _:
            assert_never(action)
    return shown
