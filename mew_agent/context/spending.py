"""[pure] The cost of model calls and of one compaction: tokens as reported, money by configured prices.

Every figure is reported by a provider, or absent.
"""

from dataclasses import dataclass, field

from mew_protocol.context_report import CompactionCost, Spending, known_sum
from mew_settings.model_facts import ModelPrice

from mew_agent.model.usage import Usage, implausibility

_PER_PRICE = 1_000_000
"""Prices are for this many tokens."""


def with_call(spent: Spending | None, usage: Usage | None, amount: float | None, currency: str | None) -> Spending:
    """Add the reported usage and the cost of a call. A figure missing from one call stays absent from then on."""
    spent = spent or Spending()
    if usage is None or implausibility(usage) is not None:
        return spent.model_copy(update={"unreported_calls": spent.unreported_calls + 1})
    usage = usage.billed
    cached, money = usage.cached_tokens, amount
    if spent.calls:
        cached = known_sum(spent.cached_tokens, cached)
        money = known_sum(spent.amount, amount) if currency == spent.currency else None
    cost = (None, None) if money is None else (round(money, 8), currency)
    return Spending(
        calls=(spent.calls or 0) + 1,
        unreported_calls=spent.unreported_calls,
        prompt_tokens=(spent.prompt_tokens or 0) + usage.prompt_tokens,
        # Some providers do not count hidden reasoning as completion, only in the total.
        completion_tokens=(spent.completion_tokens or 0) + usage.generated_tokens,
        cached_tokens=cached,
        amount=cost[0],
        currency=cost[1],
    )


def amount_of(price: ModelPrice, usage: Usage) -> float:
    """Return the cost of a call, in the currency of the price."""
    usage = usage.billed
    cached_tokens = usage.cached_tokens or 0
    cached_price = price.input if price.cached_input is None else price.cached_input
    read = max(0, usage.prompt_tokens - cached_tokens) * price.input + cached_tokens * cached_price
    return (read + usage.generated_tokens * price.output) / _PER_PRICE


@dataclass
class SummarySpending:
    """Collects the usage of the model calls of one compaction. `price` is their model's price."""

    price: ModelPrice | None = None
    calls: int = 0
    _spent: Spending = field(default_factory=Spending)

    def record(self, usage: Usage | None) -> None:
        """Record the usage of a complete call. Missing or implausible usage makes the sums unknown."""
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
