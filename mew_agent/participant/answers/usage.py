"""[pure] Usage of an answer as the agent's context report has it, and the `mew` key that says how it is known.

Owns the rule that unknown is null, never 0, and that only a call made for this answer counts as its usage.
"""

from collections.abc import Sequence
from typing import Any

from mew_agent.participant.peers import PeerContext

_TOLD = (
    *("max_tokens_basis", "level", "severity", "turns_to_compaction", "compact_at_tokens"),
    *("call_id", "measured_at", "stale_messages", "compactions", "model"),
)


class CallUsage:
    """Usage of the newest main call since a turn began."""

    def __init__(self, before: PeerContext) -> None:
        self._call_before = _call_id(before)
        self._usage: dict[str, Any] | None = None

    def begin(self, context: PeerContext) -> None:
        """The turn begins only now; calls made before it were for others."""
        self._call_before, self._usage = _call_id(context), None

    def hear(self, context: PeerContext) -> None:
        """Take in a status of the agent."""
        report = context.report
        if report is None or report.reason == "usage_unavailable":
            self._usage = None
        elif report.call_id is not None and report.call_id != self._call_before and report.basis == "reported":
            self._usage = usage_of(context)

    @property
    def usage(self) -> dict[str, Any] | None:
        """As OpenAI writes it; None when the provider did not report it."""
        return self._usage


def usage_of(context: PeerContext) -> dict[str, Any] | None:
    """The figures of the report's call. None unless prompt and completion are both reported."""
    report = context.report
    if report is None or report.prompt_tokens is None or report.completion_tokens is None:
        return None
    # `tokens` is the provider's own total where that is what the policy measures; it may exceed the sum.
    is_total = report.measure == "total" and report.basis == "reported" and context.tokens is not None
    usage: dict[str, Any] = {
        "prompt_tokens": report.prompt_tokens,
        "completion_tokens": report.completion_tokens,
        "total_tokens": context.tokens if is_total else report.prompt_tokens + report.completion_tokens,
    }
    if report.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": report.cached_tokens}
    if report.reasoning_tokens is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": report.reasoning_tokens}
    return usage


def context_key(
    agent: str, context: PeerContext, *, notices: Sequence[str] = (), ignored: Sequence[str] = ()
) -> dict[str, Any]:
    """The `mew` key of an answer: how full the agent's window is, by its own report. What is not known is left out."""
    report = context.report
    # A figure of an agent that sends no report has no basis: nobody said how it is known.
    basis = context.basis or ("unknown" if context.tokens is None else "unlabelled")
    told: dict[str, Any] = {"participant": agent, "basis": basis}
    told |= {"tokens": context.tokens, "max_tokens": context.max_tokens}
    if report is not None:
        told |= {"reason": report.reason, **{name: getattr(report, name) for name in _TOLD}}
    told |= {"notices": list(notices) or None, "ignored": list(ignored) or None}
    return {name: value for name, value in told.items() if value is not None}


def _call_id(context: PeerContext) -> str | None:
    return context.report.call_id if context.report else None
