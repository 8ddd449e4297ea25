"""[pure] The default policy, `mew`, and the setting for early compactions."""

from functools import partial

from mew_agent.context.policy import definition as r
from mew_agent.context.policy.definition import Policy
from mew_agent.context.policy.threshold import mark

_AT_NINE_TENTHS = mark("used", "ge", "9/10")

_at_task_end = partial(r.CompactRule, moment="task_end", cooldown_seconds=60.0)

MEW = Policy(
    name="mew",
    limit_keys=("context_token_limit",),
    levels=(r.Level(name="near_limit", severity=2, at=_AT_NINE_TENTHS),),
    rules=(
        r.NearLimitRule(when=(_AT_NINE_TENTHS,), rearm_below="3/4"),
        _at_task_end(
            phase="after_call",
            trigger="threshold",
            target="1/2",
            # Hidden reasoning is not sent again, so a total above the threshold only because of it needs no compaction.
            when=(_AT_NINE_TENTHS, mark("resent", "ge", "9/10")),
        ),
        _at_task_end(
            phase="after_call",
            trigger="threshold_projected",
            target="1/2",
            known="unavailable",
            when=(mark("next_prompt", "ge", "9/10"),),
        ),
        r.CompactRule(
            phase="pre_request",
            trigger="would_overflow",
            target="1/2",
            when=(mark("next_prompt_and_reserve", "gt", "1/1"),),
        ),
    ),
)
"""The default: compact to half of the window at the end of a task when the reported total has reached 9/10 of it, at
most once in 60 seconds; and before a request that would not fit."""

_EARLY = _at_task_end(
    phase="task_end",
    trigger="next_task",
    # The same proportion as from 9/10 to 1/2: after a smaller cut, another would soon follow.
    target="5/9",
    target_of="used",
    when=(
        mark("next_prompt", "ge", "7/10"),
        mark("grown", "ge", "1/5"),
        mark("next_task_and_reserve", "gt", "1/1"),
    ),
)


def compacting_early(policy: Policy) -> Policy:
    """Return a copy that also compacts at the end of a task, from 7/10 of the window on, if the next usual task would
    not fit.

    Raises `ValueError` if the policy does not compact after calls.
    """
    if not any(isinstance(rule, r.CompactRule) for rule in policy.interventions.get("after_call", ())):
        raise ValueError(f"the policy '{policy.name}' does not compact after calls")
    return policy.model_copy(update={"rules": (*policy.rules, _EARLY)})
