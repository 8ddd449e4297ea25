"""[pure] A policy's suggestions to save tokens, from message sizes by role."""

from mew_agent.context.history import History
from mew_agent.context.ledger import Ledger
from mew_agent.context.policy import Policy, Suggestion
from mew_agent.context.policy.definition import SuggestRule
from mew_agent.model.interface import Role


class CountedConversation:
    """The message sizes of a context. Adding costs the same however many there are."""

    def __init__(self, policy: Policy) -> None:
        self.rules = tuple(rule for rule in policy.rules if isinstance(rule, SuggestRule))
        """Without any, messages need not be counted."""
        self._sizes: dict[Role | None, list[int]] = {}
        self._sums: dict[Role | None, int] = {}

    def add(self, tokens: int, role: Role | None = None) -> None:
        """Count a message."""
        if self.rules:
            self._sizes.setdefault(role, []).append(tokens)
            self._sums[role] = self._sums.get(role, 0) + tokens

    def clear(self) -> None:
        """Forget all messages."""
        self._sizes, self._sums = {}, {}

    def suggestions(self, limit_tokens: int | None) -> tuple[Suggestion, ...]:
        """Return the savings that the policy suggests in a window of this size; nothing if the size is unknown."""
        if limit_tokens is None:
            return ()
        return tuple(found for rule in self.rules if (found := self._suggestion(rule, limit_tokens)) is not None)

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


class SavingSuggestions:
    """The suggestions for one agent's history. The cost of a refresh does not grow with the history."""

    def __init__(self, policy: Policy) -> None:
        self._counted = CountedConversation(policy)
        self.has_rules = bool(self._counted.rules)
        """Whether the policy suggests anything."""
        self._revision = -1
        self._last_seq = -1

    def refresh(self, history: History, ledger: Ledger, window_tokens: int) -> tuple[Suggestion, ...]:
        """Count messages added or removed since the last time. Returns the present suggestions."""
        if history.revision != self._revision:  # something left: the sums start over
            self._counted.clear()
            self._revision, self._last_seq = history.revision, -1
        prices = ledger.item_prices() if self._last_seq < 0 else {}
        for item in history.items_after(self._last_seq):
            # The ledger has measured each item; measuring a long text again would block the event loop.
            tokens = prices.get(item.seq)
            role = None if item.notice else item.role  # the policy's own prompts are not a participant's messages
            self._counted.add(ledger.projection(item.seq) if tokens is None else tokens, role)
        self._last_seq = history.last_seq
        return self._counted.suggestions(window_tokens)
