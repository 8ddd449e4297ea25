"""[pure] A context measured by the sizes of its messages: occupancy, suggestions, compression by dropping the oldest.

For policies that count messages as they are added. Sizes come from the caller, who knows how they were measured; what
they say is only as good. It makes no decision (see `policy`).
"""

from dataclasses import dataclass, field
from typing import Literal

from mew_agent.context.policy import ContextSnapshot, Policy, Suggestion, level_of
from mew_agent.context.policy.rules import SuggestRule
from mew_agent.context.policy.threshold import Fraction

Role = Literal["system", "user", "assistant", "tool"]

CONCERNING_SEVERITY = 2


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full a window was at one moment. All figures in tokens."""

    used_tokens: int
    limit_tokens: int
    level: str
    severity: int
    needs_reset: bool

    @property
    def percent(self) -> float:
        """The used part in percent, for people; decisions compare the integers."""
        return self.used_tokens * 100 / self.limit_tokens

    @property
    def remaining_tokens(self) -> int:
        """What is left, never below 0."""
        return max(0, self.limit_tokens - self.used_tokens)

    @property
    def is_concerning(self) -> bool:
        """Whether somebody should look at it."""
        return self.severity >= CONCERNING_SEVERITY

    def has_room_for(self, tokens: int) -> bool:
        """Whether so many tokens more fit."""
        return self.remaining_tokens >= tokens

    def tokens_until(self, mark: Fraction) -> int:
        """How many tokens may still come before this part of the window is reached, never below 0."""
        return max(0, mark.floor_of(self.limit_tokens) - self.used_tokens)


@dataclass(frozen=True, slots=True)
class Compression:
    """What dropping messages did. `missed_by_tokens` is how far above the target it had to stop."""

    tokens_before: int
    tokens_after: int
    target_tokens: int
    removed_messages: int

    @property
    def missed_by_tokens(self) -> int:
        """0 where the target was reached."""
        return max(0, self.tokens_after - self.target_tokens)


def occupancy_of(policy: Policy, used_tokens: int, limit_tokens: int) -> Occupancy:
    """The occupancy under a policy's levels."""
    name, severity = level_of(policy, ContextSnapshot(used_tokens, "projected", limit_tokens))
    level = policy.level_named(name)
    return Occupancy(used_tokens, limit_tokens, name, severity or 0, level is not None and level.needs_reset)


@dataclass
class CountedConversation:
    """The messages of a context with their sizes. Adding costs the same however many there are."""

    policy: Policy
    limit_tokens: int
    tokens: int = 0
    history: list[Occupancy] = field(default_factory=list)
    """The occupancy after each added message, for plots; clearing and compressing leave it as it is."""

    _messages: list[tuple[Role | None, int]] = field(default_factory=list)
    _by_role: dict[Role | None, list[int]] = field(default_factory=dict)
    _sums: dict[Role | None, int] = field(default_factory=dict)

    @property
    def occupancy(self) -> Occupancy:
        """How full it is now."""
        return occupancy_of(self.policy, self.tokens, self.limit_tokens)

    @property
    def messages(self) -> tuple[tuple[Role | None, int], ...]:
        """(role, tokens) of each message, oldest first."""
        return tuple(self._messages)

    def add(self, tokens: int, role: Role | None = None) -> Occupancy:
        """Count a message in. Returns the occupancy after it, which is also kept in `history`."""
        self._append(tokens, role)
        self.tokens += tokens
        self.history.append(self.occupancy)
        return self.history[-1]

    def clear(self) -> int:
        """Forget all messages. Returns how many tokens that freed."""
        freed = self.tokens
        self._restart([], 0)
        return freed

    def compress_to(self, part: Fraction) -> Compression:
        """Drop the oldest messages until at most this part of the window is used, or one message is left.

        A system message at the front stays, and only there. The target may be missed, which the answer says.
        """
        target, before = part.floor_of(self.limit_tokens), self.tokens
        front: list[tuple[Role | None, int]] = []
        tokens, at, removed = before, 0, 0
        while tokens > target and len(self._messages) - at + len(front) > 1:
            role, size = self._messages[at]
            at += 1
            if not front and role == "system":
                front = [(role, size)]
                continue
            tokens -= size
            removed += 1
        if removed:
            self._restart([*front, *self._messages[at:]], tokens)
        return Compression(before, tokens, target, removed)

    def suggestions(self) -> tuple[Suggestion, ...]:
        """What the policy suggests now."""
        rules = [rule for rule in self.policy.rules if isinstance(rule, SuggestRule)]
        found = [self._suggestion(rule) for rule in rules]
        return tuple(one for one in found if one is not None)

    def tokens_until_level(self, name: str) -> int | None:
        """How many tokens may come before a level that begins at a part of the window; None for any other."""
        level = self.policy.level_named(name)
        mark = None if level is None else level.at.fraction
        return None if mark is None else self.occupancy.tokens_until(mark)

    def tokens_until_redline(self) -> int | None:
        """How many tokens may come before the policy's redline; None if it has none."""
        return None if self.policy.redline is None else self.occupancy.tokens_until(self.policy.redline)

    def _suggestion(self, rule: SuggestRule) -> Suggestion | None:
        if rule.more_than_messages is not None and rule.keep_newest is not None:
            sizes = self._by_role.get(rule.role, [])
            old = len(sizes) - rule.keep_newest
            if len(sizes) <= rule.more_than_messages or old <= 0:
                return None
            newest = sum(sizes[old:])
            text = f"remove the {old} oldest {rule.role} messages"
            return Suggestion(f"remove_{rule.role}", text, self._sums[rule.role] - newest, rule.impact)
        if rule.more_than is None or rule.saves is None:
            return None
        tokens = self._sums.get(rule.role, 0)
        if tokens <= rule.more_than.floor_of(self.limit_tokens):
            return None
        return Suggestion(
            f"summarise_{rule.role}", f"summarise the {rule.role} messages", rule.saves.floor_of(tokens), rule.impact
        )

    def _append(self, tokens: int, role: Role | None) -> None:
        self._messages.append((role, tokens))
        self._by_role.setdefault(role, []).append(tokens)
        self._sums[role] = self._sums.get(role, 0) + tokens

    def _restart(self, messages: list[tuple[Role | None, int]], tokens: int) -> None:
        self.tokens = tokens
        self._messages, self._by_role, self._sums = [], {}, {}
        for role, size in messages:
            self._append(size, role)
