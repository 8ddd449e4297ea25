"""[pure] The thresholds of four context-health systems and of the reference agent, as policies.

docs/reference/policies.md describes each one and the source of its figures. A file based on a preset has its own name.
"""

from functools import partial

from mew_agent.context.policy.definition import CompactRule, LargeResults, Level, NearLimitRule, StopRule
from mew_agent.context.policy.threshold import Condition, Operator, Reserve, mark
from mew_agent.parts.policies.rules import (
    Cadence,
    Countdown,
    EntryRule,
    InjectRule,
    RemindRule,
    StateChangedRule,
    SuggestRule,
)
from mew_agent.parts.policies.written import WrittenPolicy

_AT_NINE_TENTHS = mark("used", "ge", "9/10")
_OVER_THE_WINDOW = mark("used", "ge", "1/1")


MEW_REFERENCE = WrittenPolicy(
    name="mew-reference",
    limit_keys=("context_token_limit",),
    levels=(Level(name="near_limit", severity=2, at=_AT_NINE_TENTHS),),
    rules=(
        NearLimitRule(when=(_AT_NINE_TENTHS,), rearm_below="3/4"),
        CompactRule(
            phase="after_call",
            trigger="threshold",
            target="7/10",
            when=(mark("used", "gt", "19/20"),),
            method="drop_oldest",
        ),
    ),
    max_stalls=1,
)
"""The thresholds of the TypeScript agent: announce at 9/10, compact above 19/20 to 7/10."""

_dominds = partial(
    WrittenPolicy,
    measure="prompt",
    bases=("reported",),
    limit_missing="unknown",
    limit_keys=("context_length", "input_length"),
)


def _optimal(op: Operator) -> Condition:
    return Condition(figure="used", op=op, fraction="1/2", override="optimal_max_tokens", whole=True)


DOMINDS_V1 = _dominds(
    name="dominds-v1",
    levels=(Level(name="caution", severity=1, at=_optimal("gt")),),
    rules=(
        RemindRule(
            owner="context_health",
            when_any=(mark("used", "gt", "1/2"), _optimal("gt")),
            until=(_optimal("lt"),),
        ),
    ),
)
"""Show a reminder above half of the window or the optimal size, until the prompt is below the optimal size."""

DOMINDS_V3 = _dominds(
    name="dominds-v3",
    levels=(
        Level(
            name="caution",
            severity=1,
            at=Condition(figure="used", op="gt", tokens=100_000, override="optimal_max_tokens"),
        ),
        Level(
            name="critical",
            severity=3,
            at=Condition(figure="used", op="gt", fraction="9/10", override="critical_max_tokens", whole=True),
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

_summarise = partial(CompactRule, target="1/2", target_of="used", method="summarise")

LMSTUDIO = WrittenPolicy(
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
    reserve=Reserve(fraction="1/5", of="rest", at_least_tokens=1000),
    summariser="same",
    fallback="drop_oldest",
    rules=(
        _summarise(phase="pre_request", trigger="pre_request", when=(mark("next_prompt_and_reserve", "gt", "4/5"),)),
        StopRule(
            action="error",
            phase="tool_result",
            reason="the tool result alone exceeds the context window",
            when=(mark("tool_result", "gt", "1/1"),),
        ),
        _summarise(
            phase="tool_result",
            trigger="tool_result",
            restart=True,
            when=(mark("with_tool_result", "gt", "1/1"),),
        ),
        StopRule(action="abort", phase="stream", reason="the context window is full", when=(_OVER_THE_WINDOW,)),
        _summarise(phase="stream", trigger="stream", restart=True, when=(_AT_NINE_TENTHS,)),
        StopRule(action="abort", phase="after_call", reason="the context window is full", when=(_OVER_THE_WINDOW,)),
        _summarise(phase="after_call", trigger="after_call", when=(_AT_NINE_TENTHS,)),
    ),
)
"""Summarise before a request above 4/5 with its reserve, when a tool result would not fit, and when a streaming reply
reaches 9/10; the reply then starts again."""

TACHIKOMA = WrittenPolicy(
    name="tachikoma",
    on_missing="keep_last",
    limit_missing="error",
    limit_keys=("max_tokens",),
    phases=("message_added", "after_call"),
    healthy="nominal",
    levels=(
        Level(name="elevated", severity=1, at=mark("used", "ge", "1/2")),
        Level(name="warning", severity=2, at=mark("used", "ge", "3/4")),
        Level(name="critical", severity=3, at=mark("used", "ge", "17/20")),
        Level(name="redlined", severity=3, at=_OVER_THE_WINDOW, needs_reset=True),
    ),
    redline="9/10",
    requested_method="drop_oldest",
    rules=(
        StateChangedRule(),
        EntryRule(action="approaching_redline", level="critical", repeat="first_entry"),
        EntryRule(action="redlined", level="redlined"),
        SuggestRule(role="user", impact="low", more_than_messages=10, keep_newest=5),
        SuggestRule(role="assistant", impact="medium", more_than="1/3", saves="1/2"),
    ),
)
"""Announce every change between five levels, and suggest savings. Compact on request only: drop the oldest turns."""
