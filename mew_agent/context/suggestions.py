"""[pure] Feeds the messages of a history to the policy that suggests removals."""

from mew_agent.context.history import History
from mew_agent.context.ledger import Ledger
from mew_agent.context.policy import Suggestion
from mew_agent.context.policy.definition import MessageCounter


class SavingSuggestions:
    """The suggestions for one agent's history. The cost of a refresh does not grow with the history."""

    def __init__(self, counter: MessageCounter) -> None:
        self._counted = counter
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
