"""[pure] What a policy suggests in order to save tokens, from the items of a history and their sizes.

Owns the running sums behind the suggestions, so that the cost of a refresh does not grow with the history. The sums
start over when items left the history.
"""

from mew_agent.context.history import Item
from mew_agent.context.measures import measure_of
from mew_agent.context.message_counts import CountedConversation
from mew_agent.context.policy import Policy, Suggestion
from mew_agent.context.policy.rules import SuggestRule
from mew_agent.context.tracker import Tracker


class SavingSuggestions:
    """The suggestions of one agent's policy; none under a policy without rules for them."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._policy: Policy = tracker.policy
        self._suggests = any(isinstance(rule, SuggestRule) for rule in tracker.policy.rules)
        self._counted = CountedConversation(tracker.policy, 1)
        self._revision = -1
        self._last_seq = -1

    def refresh(self) -> tuple[Suggestion, ...]:
        """Count what entered or left since the last time. Returns what is suggested now."""
        if not self._suggests:
            return ()
        self._count_new_items()
        self._counted.limit_tokens = self._tracker.limit_tokens or self._tracker.window.max_tokens
        return self._counted.suggestions()

    def _count_new_items(self) -> None:
        history = self._tracker.history
        if history.revision != self._revision:
            self._counted = CountedConversation(self._policy, 1)
            self._revision, self._last_seq = history.revision, -1
        new: list[Item] = []
        for item in reversed(history.items):
            if item.seq <= self._last_seq:
                break
            new.append(item)
        if not new:
            return
        calibration = self._tracker.ledger.calibration
        prices = self._tracker.ledger.item_prices() if self._last_seq < 0 else {}
        for item in reversed(new):
            tokens = prices.get(item.seq)
            role = None if item.notice else item.role  # the policy's own prompts are not a participant's messages
            self._counted.add(measure_of(item).project(calibration) if tokens is None else tokens, role)
        self._last_seq = history.last_seq
