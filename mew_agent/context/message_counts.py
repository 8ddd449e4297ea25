"""[pure] Sums of message sizes by role, and the savings that a policy suggests from them.

For policies that count messages as they are added. The caller measures the sizes. Makes no decisions (see `policy`).
"""

from dataclasses import dataclass, field
from typing import Literal

from mew_agent.context.policy import Policy, Suggestion
from mew_agent.context.policy.rules import SuggestRule

Role = Literal["system", "user", "assistant", "tool"]


@dataclass
class CountedConversation:
    """The message sizes of a context. Adding costs the same however many there are."""

    policy: Policy
    limit_tokens: int

    _sizes: dict[Role | None, list[int]] = field(default_factory=dict)
    _sums: dict[Role | None, int] = field(default_factory=dict)

    def add(self, tokens: int, role: Role | None = None) -> None:
        """Count a message."""
        self._sizes.setdefault(role, []).append(tokens)
        self._sums[role] = self._sums.get(role, 0) + tokens

    def clear(self) -> None:
        """Forget all messages."""
        self._sizes, self._sums = {}, {}

    def suggestions(self) -> tuple[Suggestion, ...]:
        """The savings that the policy suggests now."""
        rules = [rule for rule in self.policy.rules if isinstance(rule, SuggestRule)]
        found = [self._suggestion(rule) for rule in rules]
        return tuple(one for one in found if one is not None)

    def _suggestion(self, rule: SuggestRule) -> Suggestion | None:
        if rule.more_than_messages is not None and rule.keep_newest is not None:
            sizes = self._sizes.get(rule.role, [])
            old = len(sizes) - rule.keep_newest
            if len(sizes) <= rule.more_than_messages or old <= 0:
                return None
            text = f"remove the {old} oldest {rule.role} messages"
            return Suggestion(f"remove_{rule.role}", text, self._sums[rule.role] - sum(sizes[old:]), rule.impact)
        if rule.more_than is None or rule.saves is None:
            return None
        tokens = self._sums.get(rule.role, 0)
        if tokens <= rule.more_than.floor_of(self.limit_tokens):
            return None
        text = f"summarise the {rule.role} messages"
        return Suggestion(f"summarise_{rule.role}", text, rule.saves.floor_of(tokens), rule.impact)
