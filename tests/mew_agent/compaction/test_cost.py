"""What the summary calls of a compaction cost."""

import pytest

from mew_agent.compaction.cost import SummarySpending
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
