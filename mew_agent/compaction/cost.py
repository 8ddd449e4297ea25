"""[pure] What a compaction cost: the tokens of its model calls, the cache it invalidated, and money by known prices.

Every figure is what a provider reported, or absent. Does not know how a summary is made.
"""

from dataclasses import dataclass, field

from mew_protocol.agent_settings import ModelPrice
from mew_protocol.context_report import CompactionCost, Spending

from mew_agent.compaction.planner import CompactionPlan
from mew_agent.context.spending import amount_of, with_call
from mew_agent.context.tracker import Tracker
from mew_agent.model.usage import Usage


@dataclass
class SummarySpending:
    """Collects the usage of the model calls of one compaction. `price` is that of the model that they ask."""

    price: ModelPrice | None = None
    calls: int = 0
    _spent: Spending = field(default_factory=Spending)

    def record(self, usage: Usage | None) -> None:
        """Record what a complete call reported. Calls without a report that can be true make the sums unknown."""
        amount = amount_of(self.price, usage) if self.price is not None and usage is not None else None
        self._spent = with_call(self._spent, usage, amount, self.price.currency if self.price is not None else None)

    def cost(self, freed_tokens: int, cache_lost_tokens: int | None) -> CompactionCost:
        """Return the cost of a compaction that freed this many tokens, net."""
        known = CompactionCost(calls=self.calls, cache_lost_tokens=cache_lost_tokens)
        tokens = self._spent.spent_tokens
        if tokens is None or (self._spent.calls or 0) < self.calls:
            return known
        sums = self._spent.model_dump(exclude={"calls", "unreported_calls"})
        return known.model_copy(update={**sums, "freed_per_token": round(freed_tokens / tokens, 3)})


def cache_lost_tokens(plan: CompactionPlan, tracker: Tracker) -> int | None:
    """Return the cached tokens that the last call read and the next one cannot, before a plan is applied.

    None if that call reported no cached tokens, or none of its report counts any more.
    """
    usage = tracker.measurement.usage
    if tracker.basis != "reported" or usage is None or usage.cached_tokens is None:
        return None
    parts, prices = tracker.ledger.parts, tracker.ledger.item_prices()
    kept = parts.prefix + parts.pins
    changed = list(plan.stub_seqs)
    if plan.evict is None:
        kept += parts.summary
    else:
        changed.append(plan.evict[0])
    kept += sum(tokens for seq, tokens in prices.items() if seq < min(changed, default=0))
    return max(0, usage.cached_tokens - kept)
