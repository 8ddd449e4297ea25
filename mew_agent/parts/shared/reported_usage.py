"""[pure] An agent's context for clients of chat APIs: OpenAI's `usage`, and the key `mew`.

Unknown figures are left out, never 0, and a figure that the provider did not report is labelled with its basis.
"""

from collections.abc import Sequence
from typing import Any

from mew_protocol.payloads.chat import TokenUsage

from mew_agent.participant.peers import PeerContext

Json = dict[str, Any]

_COPIED_KEYS = (
    *("max_tokens_basis", "level", "severity", "turns_to_compaction", "compact_at_tokens"),
    *("call_id", "measured_at", "stale_messages", "compactions", "model"),
)


class CallUsage:
    """The usage of the main calls since an agent began to work on an answer, for agents that do not sum it."""

    def __init__(self, before: PeerContext) -> None:
        self.begin(before)

    def begin(self, context: PeerContext) -> None:
        """Start counting now; ignore the call in `context`."""
        self._call_before = context.report.call_id if context.report else None
        self._calls: dict[str, Json] | None = {}

    def update(self, context: PeerContext) -> None:
        """Read a status of the agent."""
        report = context.report
        if report is None or report.reason in ("usage_unavailable", "usage_implausible"):
            self._calls = None
        elif report.call_id is not None and report.call_id != self._call_before and report.basis == "reported":
            usage = openai_usage(context)
            if usage is not None and self._calls is not None:
                self._calls[report.call_id] = usage

    @property
    def usage(self) -> Json | None:
        """OpenAI's `usage` of all calls; None if the provider did not report one of them."""
        usages = list((self._calls or {}).values())
        if len(usages) < 2:
            return usages[0] if usages else None
        return {key: sum(one[key] for one in usages) for key in ("prompt_tokens", "completion_tokens", "total_tokens")}

    @property
    def last_call(self) -> Json | None:
        """OpenAI's `usage` of the newest call."""
        return next(reversed((self._calls or {}).values()), None)


def usage_of(tokens: TokenUsage | None) -> Json | None:
    """Return reported tokens as OpenAI's `usage`."""
    if tokens is None:
        return None
    usage: Json = {
        "prompt_tokens": tokens.prompt_tokens,
        "completion_tokens": tokens.completion_tokens,
        "total_tokens": tokens.total_tokens,
    }
    if tokens.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": tokens.cached_tokens}
    if tokens.reasoning_tokens is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": tokens.reasoning_tokens}
    return usage


def openai_usage(context: PeerContext) -> Json | None:
    """Return the figures of the report's call as OpenAI's `usage`; None unless prompt and completion are reported."""
    report = context.report
    if report is None or report.prompt_tokens is None or report.completion_tokens is None:
        return None
    # `tokens` is the provider's own total if the policy measures totals; it may exceed the sum.
    is_total = report.measure == "total" and report.basis == "reported" and context.tokens is not None
    both = report.prompt_tokens + report.completion_tokens
    return usage_of(
        TokenUsage(
            prompt_tokens=report.prompt_tokens,
            completion_tokens=report.completion_tokens,
            total_tokens=context.tokens if is_total and context.tokens is not None else both,
            cached_tokens=report.cached_tokens,
            reasoning_tokens=report.reasoning_tokens,
        )
    )


def context_key(
    agent: str, context: PeerContext, *, notices: Sequence[str] = (), ignored: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the `mew` key of an answer: how full the agent's context is, by its own report. Omits unknown values."""
    report = context.report
    values: dict[str, Any] = {"participant": agent, "basis": context.basis_label}
    values |= {"tokens": context.tokens, "max_tokens": context.max_tokens}
    if report is not None:
        values |= {"reason": report.reason, **{name: getattr(report, name) for name in _COPIED_KEYS}}
    values |= {"notices": list(notices) or None, "ignored": list(ignored) or None}
    return {name: value for name, value in values.items() if value is not None}
