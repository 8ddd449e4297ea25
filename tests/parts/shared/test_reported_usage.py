"""Usage from the agent's report: unknown is never 0, and only calls for this answer count."""

from typing import Any

from mew_protocol.context_report import ContextReport

from mew_agent.participant.peers import PeerContext
from mew_agent.parts.shared.reported_usage import CallUsage, context_key, openai_usage


def context(tokens: int | None, call_id: str | None = "c1", **report: Any) -> PeerContext:
    given = {"measure": "total", "prompt_tokens": 90, "completion_tokens": 10, "call_id": call_id}
    report = {"basis": "reported", **given, **report}
    return PeerContext(
        tokens=tokens, max_tokens=1000, messages=2, status="active", report=ContextReport.model_validate(report)
    )


UNAVAILABLE = {"basis": "unknown", "reason": "usage_unavailable", "prompt_tokens": None, "completion_tokens": None}


def test_figures_are_those_of_the_report() -> None:
    assert openai_usage(context(120, cached_tokens=40, reasoning_tokens=5)) == {
        "prompt_tokens": 90,
        "completion_tokens": 10,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 40},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }


def test_unreported_details_are_left_out() -> None:
    assert openai_usage(context(100)) == {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}


def test_total_is_the_sum_if_the_measure_is_not_the_total() -> None:
    usage = openai_usage(context(90, measure="prompt"))
    assert usage is not None
    assert usage["total_tokens"] == 100


def test_half_a_report_gives_no_usage() -> None:
    assert openai_usage(context(100, completion_tokens=None)) is None
    assert openai_usage(PeerContext(tokens=100)) is None


def test_only_calls_after_the_beginning_count() -> None:
    usage = CallUsage(context(100))

    def total() -> int | None:
        return usage.usage["total_tokens"] if usage.usage else None

    usage.update(context(100))
    assert total() is None
    usage.update(context(200, "c2"))
    assert total() == 200
    usage.begin(context(200, "c2"))
    assert total() is None
    usage.update(context(300, "c3"))
    assert total() == 300


def test_projection_after_a_compaction_keeps_the_calls_figures() -> None:
    usage = CallUsage(context(100))
    usage.update(context(200, "c2"))
    usage.update(context(50, "c2", basis="projected", prompt_tokens=None, completion_tokens=None))
    assert usage.usage is not None
    assert usage.usage["total_tokens"] == 200


def test_newest_call_without_usage_clears_it() -> None:
    usage = CallUsage(context(100))
    usage.update(context(200, "c2"))
    usage.update(context(None, "c2", **UNAVAILABLE))
    assert usage.usage is None


def test_mew_key_leaves_out_unknown_values() -> None:
    reported = context_key("coder", context(None, None, **UNAVAILABLE), notices=["compacting ..."], ignored=["tools"])
    assert reported["participant"] == "coder"
    assert reported["basis"] == "unknown"
    assert reported["reason"] == "usage_unavailable"
    assert reported["max_tokens"] == 1000
    assert reported["notices"] == ["compacting ..."]
    assert reported["ignored"] == ["tools"]
    assert not {"tokens", "turns_to_compaction", "call_id"} & reported.keys()
    assert context_key("coder", PeerContext()) == {"participant": "coder", "basis": "unknown"}


def test_figure_without_a_report_is_an_estimate() -> None:
    reported = context_key("other", PeerContext(tokens=7, max_tokens=20_000))
    assert reported == {"participant": "other", "basis": "estimate", "tokens": 7, "max_tokens": 20_000}
