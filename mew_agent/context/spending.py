"""[pure] Sums of what model calls cost: the tokens that providers report, and money by configured prices."""

from mew_protocol.agent_settings import ModelPrice
from mew_protocol.context_report import Spending

from mew_agent.model.usage import Usage

_PER_PRICE = 1_000_000
"""Prices are for this many tokens."""


def with_call(spent: Spending | None, usage: Usage | None, amount: float | None, currency: str | None) -> Spending:
    """Add a call: what its provider reported, and what it cost. A figure that one lacks stays absent from then on."""
    spent = spent or Spending()
    if usage is None or usage.contradicts_itself:
        return spent.model_copy(update={"unreported_calls": spent.unreported_calls + 1})
    is_first = not spent.calls
    cached, money = usage.cached_tokens, amount
    if not is_first:
        cached = None if cached is None or spent.cached_tokens is None else spent.cached_tokens + cached
        money = None if money is None or spent.amount is None or currency != spent.currency else spent.amount + money
    return Spending(
        calls=(spent.calls or 0) + 1,
        unreported_calls=spent.unreported_calls,
        prompt_tokens=(spent.prompt_tokens or 0) + usage.prompt_tokens,
        # Some providers do not count hidden reasoning as completion, only in the total.
        completion_tokens=(spent.completion_tokens or 0) + usage.total_tokens - usage.prompt_tokens,
        cached_tokens=cached,
        amount=None if money is None else round(money, 8),
        currency=None if money is None else currency,
    )


def amount_of(price: ModelPrice, usage: Usage) -> float:
    """Return what a call cost, in the currency of the price."""
    cached_tokens = usage.cached_tokens or 0
    cached_price = price.input if price.cached_input is None else price.cached_input
    read = (usage.prompt_tokens - cached_tokens) * price.input + cached_tokens * cached_price
    return (read + (usage.total_tokens - usage.prompt_tokens) * price.output) / _PER_PRICE
