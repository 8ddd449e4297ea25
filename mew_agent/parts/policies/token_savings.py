"""[pure] Suggestions to save tokens, from message sizes by role."""

from collections.abc import Sequence

from mew_agent.context.policy import Suggestion
from mew_agent.model.interface import Role
from mew_agent.parts.policies.rules import SuggestRule


class CountedConversation:
    """The message sizes of a context. Adding costs the same however many there are."""

    def __init__(self, rules: Sequence[SuggestRule]) -> None:
        self._rules = rules
        self._sizes: dict[Role | None, list[int]] = {}
        self._sums: dict[Role | None, int] = {}

    def add(self, tokens: int, role: Role | None = None) -> None:
        """Count a message."""
        self._sizes.setdefault(role, []).append(tokens)
        self._sums[role] = self._sums.get(role, 0) + tokens

    def clear(self) -> None:
        """Forget all messages."""
        self._sizes, self._sums = {}, {}

    def suggestions(self, limit_tokens: int | None) -> tuple[Suggestion, ...]:
        """Return the savings that the rules suggest in a window of this size; nothing if the size is unknown."""
        if limit_tokens is None:
            return ()
        return tuple(found for rule in self._rules if (found := self._suggestion(rule, limit_tokens)) is not None)

    def _suggestion(self, rule: SuggestRule, limit_tokens: int) -> Suggestion | None:
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
        if tokens <= rule.more_than.floor_of(limit_tokens):
            return None
        text = f"summarise the {rule.role} messages"
        return Suggestion(f"summarise_{rule.role}", text, rule.saves.floor_of(tokens), rule.impact)
