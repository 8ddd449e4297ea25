"""[pure] What a policy suggests to save tokens, from the items of a history and what each probably takes.

Owns the sums behind the suggestions, so that asking costs the same however long the history is; they are made anew
only when something left it.
"""

from mew_agent.context.history import Item
from mew_agent.context.measures import measure_of
from mew_agent.context.message_counts import CountedConversation, Role
from mew_agent.context.policy import Policy, Suggestion
from mew_agent.context.policy.rules import SuggestRule
from mew_agent.context.tracker import Tracker


class Advice:
    """The suggestions of one agent's policy; none under a policy without rules for them."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._policy: Policy = tracker.policy
        self._suggests = any(isinstance(rule, SuggestRule) for rule in tracker.policy.rules)
        self._counted = CountedConversation(tracker.policy, 1)
        self._revision = -1
        self._last_seq = -1

    def renew(self) -> tuple[Suggestion, ...]:
        """Look at what entered or left since, and tell the tracker what is suggested now."""
        if self._suggests:
            self._take_in()
            self._counted.limit_tokens = self._tracker.limit_tokens or self._tracker.window.max_tokens
            self._tracker.suggestions = self._counted.suggestions()
        return self._tracker.suggestions

    def _take_in(self) -> None:
        history = self._tracker.history
        if history.revision != self._revision:
            self._counted = CountedConversation(self._policy, 1)
            self._revision, self._last_seq = history.revision, -1
        new = []
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
            self._counted.add(measure_of(item).project(calibration) if tokens is None else tokens, _role_of(item))
        self._last_seq = history.last_seq


def _role_of(item: Item) -> Role | None:
    """A prompt of our own is nobody's message."""
    return None if item.notice else item.role
