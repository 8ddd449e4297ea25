"""[pure] The built-in policies, as data: the default, and those of four context-health systems.

docs/reference/policies.md describes each one and the source of its figures. A file that builds on a preset has a name
of its own.
"""

from collections.abc import Mapping

from mew_agent.context.policy.definition import LargeResults, Policy
from mew_agent.context.policy.rules import (
    Cadence,
    CompactRule,
    Countdown,
    EntryRule,
    InjectRule,
    Level,
    NearLimitRule,
    RemindRule,
    StateChangedRule,
    StopRule,
    SuggestRule,
)
from mew_agent.context.policy.threshold import Condition, Fraction, Operator, Reserve


def _fraction(numerator: int, denominator: int) -> Fraction:
    return Fraction(numerator=numerator, denominator=denominator)


def _used(op: Operator, numerator: int, denominator: int) -> Condition:
    return Condition(figure="used", op=op, fraction=_fraction(numerator, denominator))


_AT_NINE_TENTHS = _used("ge", 9, 10)
_OVER_THE_WINDOW = Condition(figure="used", op="ge", fraction=_fraction(1, 1))

MEW = Policy(
    name="mew",
    limit_keys=("context_token_limit",),
    levels=(Level(name="near_limit", severity=2, at=_AT_NINE_TENTHS),),
    rules=(
        NearLimitRule(when=(_AT_NINE_TENTHS,), rearm_below=_fraction(3, 4)),
        CompactRule(
            phase="after_call",
            trigger="threshold",
            target=_fraction(1, 2),
            when=(_AT_NINE_TENTHS, Condition(figure="resent", op="ge", fraction=_fraction(9, 10))),
        ),
        CompactRule(
            phase="after_call",
            trigger="threshold_projected",
            target=_fraction(1, 2),
            known="unavailable",
            when=(Condition(figure="next_prompt", op="ge", fraction=_fraction(9, 10)),),
        ),
        CompactRule(
            phase="pre_request",
            trigger="would_overflow",
            target=_fraction(1, 2),
            when=(Condition(figure="next_prompt_and_reserve", op="gt", fraction=_fraction(1, 1)),),
        ),
    ),
)
"""The default: compact to half of the window when the reported total reaches 9/10 of it, and before a request that
would not fit."""

MEW_REFERENCE = Policy(
    name="mew-reference",
    limit_keys=("context_token_limit",),
    levels=(Level(name="near_limit", severity=2, at=_AT_NINE_TENTHS),),
    rules=(
        NearLimitRule(when=(_AT_NINE_TENTHS,), rearm_below=_fraction(3, 4)),
        CompactRule(
            phase="after_call",
            trigger="threshold",
            target=_fraction(7, 10),
            when=(_used("gt", 19, 20),),
            method="drop_oldest",
        ),
    ),
    max_stalls=1,
)
"""The thresholds of the TypeScript agent: announce at 9/10, compact above 19/20 to 7/10."""

_DOMINDS_LIMIT_KEYS = ("context_length", "input_length")


def _over_half_or_optimal(op: Operator) -> Condition:
    return Condition(figure="used", op=op, fraction=_fraction(1, 2), override="optimal_max_tokens", whole=True)


DOMINDS_V1 = Policy(
    name="dominds-v1",
    measure="prompt",
    bases=("reported",),
    limit_missing="unknown",
    limit_keys=_DOMINDS_LIMIT_KEYS,
    levels=(Level(name="caution", severity=1, at=_over_half_or_optimal("gt")),),
    rules=(
        RemindRule(
            owner="context_health",
            when_any=(_used("gt", 1, 2), _over_half_or_optimal("gt")),
            until=(_over_half_or_optimal("lt"),),
        ),
    ),
)
"""Show a reminder above half of the window or the optimal size, until the prompt is below the optimal size."""

DOMINDS_V3 = Policy(
    name="dominds-v3",
    measure="prompt",
    bases=("reported",),
    limit_missing="unknown",
    limit_keys=_DOMINDS_LIMIT_KEYS,
    levels=(
        Level(
            name="caution",
            severity=1,
            at=Condition(figure="used", op="gt", tokens=100_000, override="optimal_max_tokens"),
        ),
        Level(
            name="critical",
            severity=3,
            at=Condition(figure="used", op="gt", fraction=_fraction(9, 10), override="critical_max_tokens", whole=True),
        ),
    ),
    rules=(
        InjectRule(
            level="caution",
            repeat=Cadence(
                generations=10,
                override="caution_remediation_cadence_generations",
                aliases=("caution_cadence_generations",),
            ),
            withheld_by=("user_prompt", "queue_busy"),
        ),
        InjectRule(
            level="critical", repeat=Countdown(steps=5), withheld_by=("queue_busy",), silent_for=("user_chain",)
        ),
    ),
    large_results=LargeResults(levels=("caution", "critical")),
)
"""Prompt at intervals above the optimal size; above the critical size count down five prompts, then clear."""

LMSTUDIO = Policy(
    name="lmstudio",
    scope="lmstudio",
    on_missing="keep_last",
    limit_missing="error",
    limit_keys=("context_length",),
    phases=("pre_request", "tool_result", "stream", "after_call"),
    levels=(
        Level(name="near_limit", severity=2, at=_AT_NINE_TENTHS),
        Level(name="full", severity=3, at=_OVER_THE_WINDOW, needs_reset=True),
    ),
    reserve=Reserve(fraction=_fraction(1, 5), of="rest", at_least_tokens=1000),
    summariser="same",
    fallback="drop_oldest",
    rules=(
        CompactRule(
            phase="pre_request",
            trigger="pre_request",
            target=_fraction(1, 2),
            target_of="used",
            method="summarise",
            when=(Condition(figure="next_prompt_and_reserve", op="gt", fraction=_fraction(4, 5)),),
        ),
        StopRule(
            action="error",
            phase="tool_result",
            reason="the tool result alone exceeds the context window",
            when=(Condition(figure="tool_result", op="gt", fraction=_fraction(1, 1)),),
        ),
        CompactRule(
            phase="tool_result",
            trigger="tool_result",
            target=_fraction(1, 2),
            target_of="used",
            method="summarise",
            restart=True,
            when=(Condition(figure="with_tool_result", op="gt", fraction=_fraction(1, 1)),),
        ),
        StopRule(action="abort", phase="stream", reason="the context window is full", when=(_OVER_THE_WINDOW,)),
        CompactRule(
            phase="stream",
            trigger="stream",
            target=_fraction(1, 2),
            target_of="used",
            method="summarise",
            restart=True,
            when=(_AT_NINE_TENTHS,),
        ),
        StopRule(action="abort", phase="after_call", reason="the context window is full", when=(_OVER_THE_WINDOW,)),
        CompactRule(
            phase="after_call",
            trigger="after_call",
            target=_fraction(1, 2),
            target_of="used",
            method="summarise",
            when=(_AT_NINE_TENTHS,),
        ),
    ),
)
"""Summarise before a request above 4/5 with its reserve, when a tool result would not fit, and when a streaming reply
reaches 9/10; the reply then starts again."""

TACHIKOMA = Policy(
    name="tachikoma",
    on_missing="keep_last",
    limit_missing="error",
    limit_keys=("max_tokens",),
    phases=("message_added", "after_call"),
    healthy="nominal",
    levels=(
        Level(name="elevated", severity=1, at=_used("ge", 1, 2)),
        Level(name="warning", severity=2, at=_used("ge", 3, 4)),
        Level(name="critical", severity=3, at=_used("ge", 17, 20)),
        Level(name="redlined", severity=3, at=_OVER_THE_WINDOW, needs_reset=True),
    ),
    redline=_fraction(9, 10),
    rules=(
        StateChangedRule(),
        EntryRule(action="approaching_redline", level="critical", repeat="first_entry"),
        EntryRule(action="redlined", level="redlined"),
        SuggestRule(role="user", impact="low", more_than_messages=10, keep_newest=5),
        SuggestRule(role="assistant", impact="medium", more_than=_fraction(1, 3), saves=_fraction(1, 2)),
    ),
)
"""Announce every change between five levels, and suggest savings; never compact."""

PRESETS: Mapping[str, Policy] = {
    policy.name: policy for policy in (MEW, MEW_REFERENCE, DOMINDS_V1, DOMINDS_V3, LMSTUDIO, TACHIKOMA)
}
"""All built-in policies by name."""
