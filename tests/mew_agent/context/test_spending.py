"""What the summary calls of a compaction cost."""

import pytest
from mew_settings.model_facts import ModelPrice

from mew_agent.context.spending import SummarySpending, amount_of, with_call
from mew_agent.model.usage import Usage


def test_the_tokens_of_all_summary_calls_are_added_up() -> None:
    spending = SummarySpending(calls=2)
    spending.record(Usage(1000, 60, 1060, cached_tokens=400))
    spending.record(Usage(500, 40, 540, cached_tokens=0))
    cost = spending.cost(3200, 700)
    assert (cost.prompt_tokens, cost.completion_tokens, cost.cached_tokens) == (1500, 100, 400)
    assert (cost.freed_per_token, cost.cache_lost_tokens) == (2.0, 700)


@pytest.mark.parametrize("usage", [None, Usage(1000, 60, 900)], ids=["no report", "a total below the prompt"])
def test_the_sums_are_unknown_without_a_report_that_can_be_true(usage: Usage | None) -> None:
    spending = SummarySpending(calls=2)
    spending.record(Usage(1000, 60, 1060))
    spending.record(usage)
    cost = spending.cost(3200, None)
    assert (cost.calls, cost.prompt_tokens, cost.completion_tokens, cost.freed_per_token) == (2, None, None, None)


def test_sums_leave_out_unreported_figures() -> None:
    price = ModelPrice(input=2.0, cached_input=1.0, output=10.0, currency="USD")
    first, second = Usage(1000, 60, 1060, cached_tokens=400), Usage(500, 40, 600)  # 60 tokens of hidden reasoning
    spent = with_call(None, first, amount_of(price, first), "USD")
    assert str(spent) == "1,060 tokens in 1 call (400 cached), 0.0022 USD"
    spent = with_call(spent, second, amount_of(price, second), "USD")
    assert (spent.calls, spent.spent_tokens, spent.cached_tokens, spent.amount) == (2, 1660, None, 0.0042)
    spent = with_call(spent, None, None, None)
    assert str(spent) == "1,660 tokens in 2 calls (1 more not reported), 0.0042 USD"
    unpriced = with_call(spent, first, None, None)
    assert (unpriced.spent_tokens, unpriced.amount, unpriced.currency) == (2720, None, None)
    assert with_call(unpriced, first, amount_of(price, first), "USD").amount is None
    assert str(with_call(None, None, None, None)) == ""
