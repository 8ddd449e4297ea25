"""[pure] The policies we ship, as data: our default, and four context-health systems on the same engine.

What each does and where its figures come from: docs/policies.md. A preset is never changed; a file that builds on
one is a policy of its own name.
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


def _part(numerator: int, denominator: int) -> Fraction:
    return Fraction(numerator=numerator, denominator=denominator)


def _used(op: Operator, numerator: int, denominator: int) -> Condition:
    return Condition(figure="used", op=op, fraction=_part(numerator, denominator))


_AT_NINE_TENTHS = _used("ge", 9, 10)
_OVER_THE_WINDOW = Condition(figure="used", op="ge", fraction=_part(1, 1))

MEW = Policy(
    name="mew",
    limit_keys=("context_token_limit",),
    levels=(Level(name="near_limit", severity=2, at=_AT_NINE_TENTHS),),
    rules=(
        NearLimitRule(when=(_AT_NINE_TENTHS,), rearm_below=_part(3, 4)),
        CompactRule(
            phase="after_call",
            trigger="threshold",
            target=_part(1, 2),
            when=(_AT_NINE_TENTHS, Condition(figure="resent", op="ge", fraction=_part(9, 10))),
        ),
        CompactRule(
            phase="after_call",
            trigger="threshold_projected",
            target=_part(1, 2),
            known="unavailable",
            when=(Condition(figure="next_prompt", op="ge", fraction=_part(9, 10)),),
        ),
        CompactRule(
            phase="pre_request",
            trigger="would_overflow",
            target=_part(1, 2),
            when=(Condition(figure="next_prompt_and_reserve", op="gt", fraction=_part(1, 1)),),
        ),
    ),
)
"""The default: at 9/10 of the window by the provider's own total, compact to half of it; before a request that
would not fit, compact first."""

MEW_REFERENCE = Policy(
    name="mew-reference",
    limit_keys=("context_token_limit",),
    levels=(Level(name="near_limit", severity=2, at=_AT_NINE_TENTHS),),
    rules=(
        NearLimitRule(when=(_AT_NINE_TENTHS,), rearm_below=_part(3, 4)),
        CompactRule(
            phase="after_call",
            trigger="threshold",
            target=_part(7, 10),
            when=(_used("gt", 19, 20),),
            method="drop_oldest",
        ),
    ),
    max_stalls=1,
)
"""The marks of the TypeScript agent: announced at 9/10, compacted above 19/20 down to 7/10."""

_DOMINDS_LIMIT_KEYS = ("context_length", "input_length")


def _over_half_or_optimal(op: Operator) -> Condition:
    return Condition(figure="used", op=op, fraction=_part(1, 2), override="optimal_max_tokens", whole=True)


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
"""One owned reminder above half of the window or the optimal size, until the prompt is below the optimal size."""

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
            at=Condition(figure="used", op="gt", fraction=_part(9, 10), override="critical_max_tokens", whole=True),
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
"""Prompts on a cadence above the optimal size; above the critical one five prompts that count down, then a clear."""

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
    reserve=Reserve(fraction=_part(1, 5), of="rest", at_least_tokens=1000),
    summariser="same",
    fallback="drop_oldest",
    rules=(
        CompactRule(
            phase="pre_request",
            trigger="pre_request",
            target=_part(1, 2),
            target_of="used",
            method="summarise",
            when=(Condition(figure="next_prompt_and_reserve", op="gt", fraction=_part(4, 5)),),
        ),
        StopRule(
            action="error",
            phase="tool_result",
            reason="the tool result alone exceeds the context window",
            when=(Condition(figure="tool_result", op="gt", fraction=_part(1, 1)),),
        ),
        CompactRule(
            phase="tool_result",
            trigger="tool_result",
            target=_part(1, 2),
            target_of="used",
            method="summarise",
            restart=True,
            when=(Condition(figure="with_tool_result", op="gt", fraction=_part(1, 1)),),
        ),
        StopRule(action="abort", phase="stream", reason="the context window is full", when=(_OVER_THE_WINDOW,)),
        CompactRule(
            phase="stream",
            trigger="stream",
            target=_part(1, 2),
            target_of="used",
            method="summarise",
            restart=True,
            when=(_AT_NINE_TENTHS,),
        ),
        StopRule(action="abort", phase="after_call", reason="the context window is full", when=(_OVER_THE_WINDOW,)),
        CompactRule(
            phase="after_call",
            trigger="after_call",
            target=_part(1, 2),
            target_of="used",
            method="summarise",
            when=(_AT_NINE_TENTHS,),
        ),
    ),
)
"""Summarised before a request above 4/5 with room for an answer, when a tool result would not fit, and at 9/10 of a
running reply, which then begins again."""

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
    redline=_part(9, 10),
    rules=(
        StateChangedRule(),
        EntryRule(action="approaching_redline", level="critical", repeat="first_entry"),
        EntryRule(action="redlined", level="redlined"),
        SuggestRule(role="user", impact="low", more_than_messages=10, keep_newest=5),
        SuggestRule(role="assistant", impact="medium", more_than=_part(1, 3), saves=_part(1, 2)),
    ),
)
"""Five states, told on every change, and suggestions; it compacts nothing by itself."""

PRESETS: Mapping[str, Policy] = {
    policy.name: policy for policy in (MEW, MEW_REFERENCE, DOMINDS_V1, DOMINDS_V3, LMSTUDIO, TACHIKOMA)
}
"""Every policy we ship. Agents carry out any of them, and `mew context simulate` replays a log through them."""
