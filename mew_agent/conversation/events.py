"""What happens to an agent's context, as typed events for whoever listens in the same process.

Owns the events and their delivery: in order, without waiting for a listener, none being no error. Peers learn the
same from `participant/status`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from mew_protocol.context_report import Basis

from mew_agent.context.policy import Suggestion


@dataclass(frozen=True, slots=True)
class LevelChanged:
    """Another level than before; `unknown` is one too. Tokens are the report's, None where they are not known."""

    before: str
    after: str
    severity: int | None
    tokens: int | None
    max_tokens: int | None
    basis: Basis


@dataclass(frozen=True, slots=True)
class RedlineApproached:
    """The last level before the redline was entered."""

    used_tokens: int | None
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class RedlineCrossed:
    """The window is full by the policy's measure."""

    used_tokens: int | None
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class SavingSuggested:
    """A way to save tokens became available."""

    suggestion: Suggestion


@dataclass(frozen=True, slots=True)
class ContextCleared:
    """Everything was forgotten; so many tokens were in use, None where that was not known."""

    tokens: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class ContextCompacted:
    """A compaction ended. Tokens before and after, None where they are not known."""

    tokens_before: int | None
    tokens_after: int | None
    trigger: str


ContextEvent = LevelChanged | RedlineApproached | RedlineCrossed | SavingSuggested | ContextCleared | ContextCompacted

Listener = Callable[[ContextEvent], None]


@dataclass
class Events:
    """Tells every listener. A listener must not block; one that fails is its owner's matter."""

    listeners: list[Listener] = field(default_factory=list)

    def tell(self, event: ContextEvent) -> None:
        """Tell all listeners, in the order in which they came."""
        for listener in tuple(self.listeners):
            listener(event)
