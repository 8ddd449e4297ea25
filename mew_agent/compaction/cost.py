"""[pure] What a compaction cost: the tokens of its model calls, the cache it invalidated, and money by known prices.

Every figure is what a provider reported, or absent. Does not know how a summary is made.
"""

from dataclasses import dataclass, field

from mew_protocol.agent_settings import ModelPrice
from mew_protocol.context_report import CompactionCost

from mew_agent.compaction.planner import CompactionPlan
from mew_agent.context.tracker import Tracker
from mew_agent.model.usage import Usage

_PER_PRICE = 1_000_000
"""Prices are for this many tokens."""


@dataclass
class SummarySpending:
    """Collects the usage of the model calls of one compaction. `price` is that of the model that they ask."""

    price: ModelPrice | None = None
    calls: int = 0
    _usages: list[Usage] = field(default_factory=list)

    def record(self, usage: Usage | None) -> None:
        """Record what a complete call reported. Calls without a report that can be true make the sums unknown."""
        if usage is not None and not usage.contradicts_itself:
            self._usages.append(usage)

    def cost(self, freed_tokens: int, cache_lost_tokens: int | None) -> CompactionCost:
        """The cost of a compaction that freed this many tokens, net."""
        known = CompactionCost(calls=self.calls, cache_lost_tokens=cache_lost_tokens)
        if not self.calls or len(self._usages) < self.calls:
            return known
        prompt = sum(usage.prompt_tokens for usage in self._usages)
        output = sum(usage.total_tokens for usage in self._usages) - prompt
        cached = [usage.cached_tokens for usage in self._usages if usage.cached_tokens is not None]
        figures: dict[str, object] = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "cached_tokens": sum(cached) if len(cached) == self.calls else None,
            "freed_per_token": round(freed_tokens / (prompt + output), 3),
        }
        if self.price is not None:
            figures["amount"] = round(_amount(self.price, prompt, sum(cached), output), 8)
            figures["currency"] = self.price.currency
        return known.model_copy(update=figures)


def cache_lost_tokens(plan: CompactionPlan, tracker: Tracker) -> int | None:
    """Tokens that the last call read from the provider's cache and the next one cannot, before a plan is applied.

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


def _amount(price: ModelPrice, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> float:
    cached_price = price.input if price.cached_input is None else price.cached_input
    read = (prompt_tokens - cached_tokens) * price.input + cached_tokens * cached_price
    return (read + output_tokens * price.output) / _PER_PRICE
