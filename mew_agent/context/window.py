"""[pure] The context window: how large it is, and how full."""

from dataclasses import dataclass

from mew_agent.context.policy import ContextSnapshot, Policy, level_of
from mew_agent.context.policy.threshold import Fraction
from mew_agent.model.interface import Window

DEFAULT_WINDOW_TOKENS = 128_000

_TRUST = ("assumed", "trained", "loaded", "configured")


def resolve_window(configured_tokens: int | None = None) -> Window:
    """Return the window to use until the server has reported its own.

    Raises `ValueError` if the configured window is 0 or less.
    """
    if configured_tokens is not None:
        if configured_tokens <= 0:
            raise ValueError(f"a context window must have at least 1 token, got {configured_tokens:,}")
        return Window(configured_tokens, "configured", "configuration")
    return Window(DEFAULT_WINDOW_TOKENS, "assumed", "default")


def learn_from_overflow(current: Window, limit_tokens: int | None) -> Window:
    """Return the window after an overflow error with a limit: the limit, if it is smaller or more certain."""
    if limit_tokens is None or limit_tokens <= 0:
        return current
    # The running instance enforces this limit. A smaller configured window is kept, because it may be intended.
    is_better_known = _TRUST.index(current.basis) < _TRUST.index("loaded")
    if limit_tokens < current.max_tokens or is_better_known:
        return Window(limit_tokens, "loaded", "overflow error")
    return current


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full a window is, in tokens, and the level under a policy."""

    used_tokens: int
    limit_tokens: int
    level: str
    severity: int
    needs_reset: bool

    @property
    def percent(self) -> float:
        """The used part in percent, for display; decisions compare the integers."""
        return self.used_tokens * 100 / self.limit_tokens

    @property
    def remaining_tokens(self) -> int:
        """Free tokens, at least 0."""
        return max(0, self.limit_tokens - self.used_tokens)

    def has_room_for(self, tokens: int) -> bool:
        """Return whether this many more tokens fit."""
        return self.remaining_tokens >= tokens

    def tokens_until(self, mark: Fraction) -> int:
        """Return the tokens left before this fraction of the window is used, at least 0."""
        return max(0, mark.floor_of(self.limit_tokens) - self.used_tokens)


def occupancy_of(policy: Policy, used_tokens: int, limit_tokens: int) -> Occupancy:
    """Return the occupancy with its level under a policy."""
    name, severity = level_of(policy, ContextSnapshot(used_tokens, "projected", limit_tokens))
    level = policy.level_named(name)
    return Occupancy(used_tokens, limit_tokens, name, severity or 0, level is not None and level.needs_reset)


@dataclass(frozen=True, slots=True)
class Compression:
    """The result of dropping the oldest messages to reach a target."""

    tokens_before: int
    tokens_after: int
    target_tokens: int
    removed_messages: int

    @property
    def missed_by_tokens(self) -> int:
        """Tokens above the target afterwards; 0 if the target was reached."""
        return max(0, self.tokens_after - self.target_tokens)
